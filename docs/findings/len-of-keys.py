"""thunder.jit refuses ``len(mapping.keys())``; ThunderFX with torch 2.13 therefore stops at every model.

Expected: the output of eager torch.
Seen: a TypeError, "object of type ... has no len()", in both.
Versions: lightning-thunder 0.2.6, torch 2.13
"""

import sys
from importlib.metadata import version

import torch

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from thunder.dynamo import thunderfx


def count_of_keys(x):
    return x * len({"a": 1, "b": 2}.keys())


def plain(x):
    return x * 2


print("lightning-thunder", version("lightning-thunder"), "torch", torch.__version__)
print("expected: no exception")
failed = 0
for name, compiled in (("thunder.jit", thunder.jit(count_of_keys)), ("thunderfx", thunderfx(plain))):
    try:
        compiled(torch.ones(4))
        print(f"seen, {name}: no exception")
    except (TypeError, thunder.core.interpreter.InterpreterError) as error:
        print(f"seen, {name}: {type(error).__name__}: {str(error).splitlines()[0]}")
        failed += 1
sys.exit(int(failed > 0))
