"""Revert of the fuser fix: TE's operation fuser counts an operation's parameters when backward runs.

FSDP1 with ``use_orig_params=True`` takes parameters out of ``module.parameters()`` between forward and backward. With
the fix the counts come from construction. The revert wraps the autograd function's backward, so that graphs built
before it see it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformer_engine.pytorch as te
from transformer_engine.pytorch.ops import fuser

from harness.device import activate
from harness.fixes.base import Revert
from harness.fixes.patching import attribute, require
from harness.fp8_globals import OwnFp8Globals
from harness.subjects.te_ops_pipeline import hidden_parameters


def is_present() -> bool:
    """Whether backward works after the parameters were hidden."""
    device = activate().device
    with OwnFp8Globals().active(), torch.enable_grad():
        pipeline = te.ops.Sequential(te.ops.LayerNorm(16, device=device))
        output = pipeline(torch.ones(8, 16, device=device, requires_grad=True))
        try:
            with hidden_parameters(pipeline):
                output.backward(torch.ones_like(output))
        except RuntimeError as error:
            if "param grads" not in str(error):
                raise
            return False
    return True


@contextmanager
def counted_in_backward() -> Iterator[None]:
    """Count the parameters anew whenever backward starts."""
    function = fuser._OperationFuserAutogradFunction
    require(function.forward, "func_ctx.basic_op_num_params = fuser._basic_op_num_params")
    require(function.backward, "num_params = func_ctx.basic_op_num_params[idx]", "basic_ops = func_ctx.basic_ops")
    fixed = function.backward

    def backward(func_ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        func_ctx.basic_op_num_params = [sum(1 for _ in op.parameters()) for op in func_ctx.basic_ops]
        return fixed(func_ctx, *grad_outputs)

    with attribute(function, "backward", staticmethod(backward)):
        yield


REVERTS: Mapping[str, Revert] = {"fuser": counted_in_backward}
