"""With Thunder's TE executor v2 all dropouts of one shape drop the same elements.

Expected: two independent masks; at p = 0.5 about half of the elements that the first keeps are dropped by the second.
Seen: the second dropout drops nothing that the first one kept: both use the same random numbers.
Versions: lightning-thunder 0.2.6, transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
import transformer_engine.pytorch as te
from thunder.executors.transformer_engineex import TransformerEngineTransform, transformer_engine_ex
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


def model(x, weight):
    first = F.dropout(x, 0.5)
    second = F.dropout(x, 0.5)
    return first, second, F.linear(first, weight)


jitted = thunder.jit(model, executors=[transformer_engine_ex], transforms=[TransformerEngineTransform()])
x = torch.ones(64, 64, device=device)
weight = torch.randn(64, 64, device=device, requires_grad=True)
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print("expected: about 0.5 of the elements that one dropout keeps are dropped by the other")
for name, function in (("eager torch", model), ("thunder.jit with TE v2", jitted)):
    with te.fp8_autocast(enabled=True):
        first, second, _ = function(x, weight)
    share = (second[first != 0] == 0).float().mean().item()
    print(f"seen, {name}: {share:.2f}")
sys.exit(int(not 0.4 < share < 0.6))
