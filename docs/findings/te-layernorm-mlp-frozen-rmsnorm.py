"""te.LayerNormMLP with RMSNorm does not run under FP8 when the norm is frozen and the input needs no gradient.

Expected: an output, as with a norm that is trained.
Seen: AttributeError: 'NoneType' object has no attribute 'requires_grad'.
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


def seen(frozen):
    """The shape of the output, or the exception."""
    mlp = te.LayerNormMLP(64, 128, normalization="RMSNorm", activation="relu", device=device)
    mlp.layer_norm_weight.requires_grad_(not frozen)
    try:
        with te.fp8_autocast():
            return tuple(mlp(x).shape)
    except AttributeError as error:
        return f"{type(error).__name__}: {error}"


print("transformer_engine", version("transformer_engine"))
print("expected, norm trained:", seen(frozen=False))
frozen = seen(frozen=True)
print("seen, norm frozen:     ", frozen)
sys.exit(int(isinstance(frozen, str)))
