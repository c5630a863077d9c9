"""Thunder's TE executor v1 recomputes a checkpointed linear with the FP8 scales of the next step.

Expected: recomputation repeats the forward pass, so gradients are those without checkpointing (TE's own te.checkpoint
puts the old scales back for it).
Seen: the recomputed linears quantise with the scales that the end of the forward pass has set: other gradients.
Versions: lightning-thunder 0.2.6, transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: TE without a GPU, and Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from thunder.executors.transformer_engine_v1ex import transformer_engine_v1_ex
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformer_engine.common.recipe import DelayedScaling

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = 16 * torch.randn(32, 64, device=device)
w1, w2 = (torch.randn(64, 64, device=device, requires_grad=True) for _ in range(2))


def block(x, w1, w2):
    return linear(torch.relu(linear(x, w1)), w2)


def checkpointed(x, w1, w2):
    return checkpoint(block, x, w1, w2, use_reentrant=False)


def gradient(function):
    jitted = thunder.jit(function, executors=[transformer_engine_v1_ex], te_fp8_recipe=DelayedScaling())
    y = jitted(x, w1, w2)
    return torch.autograd.grad(y, w1, torch.ones_like(y))[0]


plain, recomputed = gradient(block), gradient(checkpointed)
difference = ((plain - recomputed).norm() / plain.norm()).item()
print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print("relative difference of the first weight's gradient with and without checkpoint, first step")
print(f"expected: 0\nseen: {difference:.3f}")
sys.exit(int(difference > 0))
