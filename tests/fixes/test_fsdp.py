"""Real FSDP1 hides parameters as the harness does: the fuser fix is what lets its backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import transformer_engine.pytorch as te
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from harness.device import activate
from harness.fixes import reverted

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of torch and TE
    pytest.mark.skipif(activate().device != "cpu", reason="one process over gloo, on the CPU"),
]


@pytest.fixture
def _one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gradient(sharded: bool) -> torch.Tensor:
    """The input gradient of a LayerNorm pipeline after one SGD step."""
    torch.manual_seed(0)
    model = te.ops.Sequential(te.ops.LayerNorm(64, device="cpu"))
    if sharded:
        model = FullyShardedDataParallel(
            model, use_orig_params=True, sharding_strategy=ShardingStrategy.NO_SHARD, device_id=torch.device("cpu")
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 64, requires_grad=True)
    for _ in range(2):
        x.grad = None
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert x.grad is not None
    return x.grad


@pytest.mark.usefixtures("_one_process")
def test_backward_needs_the_fix() -> None:
    assert torch.equal(gradient(sharded=True), gradient(sharded=False))
    with reverted(["fuser"]), pytest.raises(RuntimeError, match="Expected op 0 to generate 0 param grads, but got 2"):
        gradient(sharded=True)
