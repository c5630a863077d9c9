"""ThunderFX leaves operations to Inductor that thunder.jit compiles: torch.rms_norm, and linears in torch.autocast.

Expected: every operation of these models goes to Thunder, as under thunder.jit.
Seen: torch.rms_norm, and a linear whose input another operation in autocast made bfloat16, go to Inductor.
Versions: lightning-thunder 0.2.6
"""

import sys
from importlib.metadata import version

import torch
import torch._dynamo

if not (torch.cuda.is_available() and hasattr(torch.Tensor, "rename")):
    import harness.device  # tefuzz: Thunder 0.2.6 under torch 2.13

    harness.device.activate()
import thunder
from thunder.dynamo import thunderfx
from torch.nn import functional as F

torch._dynamo.config.use_lazy_graph_module = False  # Thunder's interpreter cannot make it later


def norm(x, weight):
    return F.rms_norm(F.linear(x, weight), (64,))


def autocast(x, weight):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return F.linear(F.linear(x, weight), weight)


x, weight = torch.ones(16, 64), torch.eye(64)
print("lightning-thunder", version("lightning-thunder"))
print("expected: 0 operations that Thunder does not compile")
split = 0
for model in (norm, autocast):
    thunder.jit(model)(x, weight)  # compiles all of it
    compiled = thunderfx(model, dynamic=False)
    compiled(x, weight)
    reasons = [reason for info in compiled._backend.subgraph_infos for reason in info.split_reasons]
    print(f"seen, {model.__name__}: {len(reasons)}: {', '.join(str(reason.exception)[:70] for reason in reasons)}")
    split += len(reasons)
sys.exit(int(split > 0))
