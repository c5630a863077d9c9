"""te.ops trains nothing, silently, under FSDP with use_orig_params=False, which is the default.

FSDP replaces the parameters by views of one flat parameter: plain attributes, which Module.parameters() does not list.
Expected: the gradient that a torch module gets, or an error.
Seen: the operation fuser finds no parameter, and the gradient is 0.
Versions: transformer_engine 2.9.0, torch 2.13
"""

import sys
from importlib.metadata import version

import torch

if not torch.cuda.is_available():
    import harness.device  # tefuzz: TE without a GPU

    harness.device.activate()
import transformer_engine.pytorch as te
from torch.distributed import HashStore, destroy_process_group, init_process_group
from torch.distributed.fsdp import FullyShardedDataParallel

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
init_process_group("nccl" if torch.cuda.is_available() else "gloo", store=HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
x = torch.randn(32, 64, device=device)


def largest_gradient(norm):
    model = torch.nn.Sequential(norm, torch.nn.Linear(64, 64, device=device))
    sharded = FullyShardedDataParallel(model, device_id=device)
    sharded(x).square().sum().backward()
    (flat,) = sharded.parameters()  # begins with the weight and the bias of the norm
    return flat.grad[:128].abs().max().item()


print("transformer_engine", version("transformer_engine"), "torch", version("torch"))
print("expected:", largest_gradient(torch.nn.LayerNorm(64, device=device)))
print("seen:", seen := largest_gradient(te.ops.LayerNorm(64, device=device)))
destroy_process_group()
sys.exit(int(seen == 0))
