"""thunder.jit saves what a checkpointed region computes, for norms and activations that it splits up.

Expected: a checkpointed region saves its inputs; everything else is computed again in backward.
Seen: GELU and LayerNorm save four intermediates each. Results are right; the memory is not saved.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def gelu(x):
    return checkpoint(lambda y: F.gelu(y, approximate="tanh"), x, use_reentrant=False)


def layer_norm(x):
    return checkpoint(lambda y: F.layer_norm(y, (64,)), x, use_reentrant=False)


x = torch.randn(32, 64, requires_grad=True)
print("lightning-thunder", version("lightning-thunder"))
print("expected: each region saves 1 tensor of 2048 elements, its input")
worst = 1
for name, model in (("gelu", gelu), ("layer norm", layer_norm)):
    output = thunder.jit(model)(x)
    sizes = [saved.numel() for saved in output.grad_fn.saved_tensors]
    print(f"seen, {name}: {len(sizes)} tensors with {sum(sizes)} elements")
    worst = max(worst, len(sizes))
sys.exit(int(worst > 1))
