"""The te.ops pipeline inside real FSDP1, in one process: torch itself takes the parameters away."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from harness.subjects.base import Compilation, Observation
from harness.subjects.te_ops_pipeline import TeOpsPipeline


class TeOpsFsdp(TeOpsPipeline):
    """``FullyShardedDataParallel(use_orig_params=True)`` with one rank: equal to the pipeline by itself.

    FSDP keeps the parameter objects; only their storage becomes part of one flat tensor.
    """

    name: ClassVar[str] = "te.ops pipeline in FSDP"

    def observe(self, until: Callable[[Compilation], bool] | None = None) -> Observation:
        backend = "gloo" if self.device == "cpu" else "nccl"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        try:
            return super().observe(until)
        finally:
            dist.destroy_process_group()

    def prepare(self) -> None:
        super().prepare()
        self.pipeline = FullyShardedDataParallel(
            self.pipeline,
            use_orig_params=True,
            sharding_strategy=ShardingStrategy.NO_SHARD,
            device_id=torch.device(self.device) if self.device == "cpu" else torch.cuda.current_device(),
        )
