"""thunder.jit cannot take a dict whose keys are no Python identifiers, for example a state dict.

Expected: the product.
Seen: the key becomes part of an argument's name in the generated program, which is then no Python: SyntaxError.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder

x = torch.ones(2)


def model(x, parameters):
    return x * parameters["0.weight"]


print("lightning-thunder", version("lightning-thunder"))
print("expected:", model(x, {"0.weight": x}))
try:
    print("seen:", thunder.jit(model)(x, {"0.weight": x}))
except SyntaxError as error:
    print(f"seen: SyntaxError: {error}: {(error.text or '').strip()}")
    sys.exit(1)
