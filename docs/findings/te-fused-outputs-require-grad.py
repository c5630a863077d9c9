"""te.LayerNormLinear marks its returned norm as requiring grad where nothing before it does.

Expected: the norm of an input that needs no gradient, by frozen parameters, requires none, as that of te.LayerNorm.
Seen: it does; its graph holds what the linear saved.
Versions: transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch

if not torch.cuda.is_available():
    import harness.device  # tefuzz: TE without a GPU

    harness.device.activate()
import transformer_engine.pytorch as te

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(32, 64, device=device)
fused = te.LayerNormLinear(64, 64, return_layernorm_output=True, device=device)
norm = te.LayerNorm(64, device=device)
for parameter in (fused.layer_norm_weight, fused.layer_norm_bias, *norm.parameters()):
    parameter.requires_grad_(False)

print("transformer_engine", version("transformer_engine"))
print("requires grad, expected (te.LayerNorm):    ", norm(x).requires_grad)
seen = fused(x)[1].requires_grad
print("requires grad, seen (te.LayerNormLinear):  ", seen)
sys.exit(int(seen))
