"""te.ops inside FSDP is never trained if its first forward ran in inference mode.

Expected: gradients, as torch.nn.Linear and te.Linear have them after the same evaluation.
Seen: none; FSDP does not get its parameters back, and the second step raises.
Versions: transformer_engine 2.9.0
"""

import sys
from importlib.metadata import version

import torch
import torch.distributed as dist

if not torch.cuda.is_available():
    import harness.device  # tefuzz: TE without a GPU

    harness.device.activate()
import transformer_engine.pytorch as te
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

device = torch.device("cuda" if torch.cuda.is_available() else "cpu", 0 if torch.cuda.is_available() else None)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)


def gradients(model):
    """How many parameters have a gradient after an evaluation in inference mode and a training step."""
    wrapped = FullyShardedDataParallel(
        model, use_orig_params=True, sharding_strategy=ShardingStrategy.NO_SHARD, device_id=device
    )
    x = torch.randn(32, 64, device=device)
    with torch.inference_mode():
        wrapped(x)
    wrapped(x).sum().backward()
    return sum(parameter.grad is not None for parameter in wrapped.parameters())


print("transformer_engine", version("transformer_engine"))
print("gradients, expected (te.Linear):", gradients(torch.nn.Sequential(te.Linear(64, 64, device=device))))
seen = gradients(te.ops.Sequential(te.ops.Linear(64, 64, device=device)))
print("gradients, seen (te.ops.Linear):", seen)
dist.destroy_process_group()
sys.exit(int(seen == 0))
