"""thunder.DebugOptions(check_traces=True) refuses every training step under the TE executor v2.

Expected: a step, as without the option; the trace computes the right numbers.
Seen: an AssertionError of Thunder's own check of its own backward trace.
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

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(16, 64, device=device)
weight = torch.randn(64, 64, device=device, requires_grad=True)


def step(check_traces):
    jitted = thunder.jit(
        torch.nn.functional.linear,
        executors=[transformer_engine_ex],
        transforms=[TransformerEngineTransform()],
        debug_options=thunder.DebugOptions(check_traces=check_traces),
    )
    with te.fp8_autocast():
        jitted(x, weight).sum().backward()


print("lightning-thunder", version("lightning-thunder"), "transformer_engine", version("transformer_engine"))
step(check_traces=False)
print("expected: a training step with check_traces=True, as without it")
try:
    step(check_traces=True)
except AssertionError as error:
    print(f"seen: AssertionError: {str(error).splitlines()[0][:100]}")
    sys.exit(1)
print("seen: a step")
