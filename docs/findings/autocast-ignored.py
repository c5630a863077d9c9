"""Thunder's TE executors compute in FP8 inside te.fp8_autocast(enabled=False).

Expected: the linear in high precision, as in eager TE.
Seen: FP8. (Without any autocast it is FP8 too, which is meant so: choosing the executor asks for it.)
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
from thunder.executors.transformer_engine_v1ex import transformer_engine_v1_ex
from thunder.executors.transformer_engineex import TransformerEngineTransform, transformer_engine_ex

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(32, 64, device=device)
linear = torch.nn.Linear(64, 64, bias=False, device=device)
eager = te.Linear(64, 64, bias=False, device=device)
eager.load_state_dict(linear.state_dict(), strict=False)
v1 = thunder.jit(linear, executors=[transformer_engine_v1_ex])
v2 = thunder.jit(linear, executors=[transformer_engine_ex], transforms=[TransformerEngineTransform()])

print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
print("relative difference from the linear in float32; expected: below 0.001")
for name, model in (("eager TE", eager), ("thunder v1", v1), ("thunder v2", v2)):
    with te.fp8_autocast(enabled=False):
        y = model(x)
    error = ((y - linear(x)).norm() / linear(x).norm()).item()
    print(f"seen, {name}: {error:.6f}")
sys.exit(int(error > 0.001))
