"""Revert of the caching fix: gradient rules of stateful symbols are cached like all others.

A rule of TE's linear makes a symbol of its own for each call, behind which an FP8 state stands. Cached by primitive,
executor and types of the arguments, the second of two equal linears gets the symbol of the first, and its scales.

Thunder went through that cache on its main path up to 0.2.2. Later releases kept the cache and its guard but build
gradients without it, so the revert (1) makes the guard's flag unseen, (2) routes TE's rules through the cache again,
and (3) gives the process an empty cache while it lasts. The second and third alone change no number and no name.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from thunder.common import CompileData
from thunder.core import devices, dtypes, prims, vjp_utils
from thunder.core.compile_data import compile_data_and_stats
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_iter
from thunder.core.trace import TraceCtx, tracectx
from thunder.core.transforms import _get_gradfn_and_executor
from thunder.extend import StatefulExecutor
from thunder.transforms import autodiff

from harness.device import activate
from harness.fixes.base import FixError, Revert
from harness.fixes.patching import attribute, require
from harness.fp8_globals import OwnFp8Globals
from harness.te_executors import executor_v1, executor_v2

FLAG = "_disable_caching"


def is_present() -> bool:
    """Whether two equal linears get gradient functions of their own, with every TE executor that claims a linear."""
    # TE's own default recipe, whatever the caller's autocast says: both executors claim linears under it.
    with _own_cache(), OwnFp8Globals().active(), torch.enable_grad():
        answers = [answer for executor in (executor_v1, executor_v2) if (answer := _distinct(executor)) is not None]
    if not answers:
        raise FixError("none of Thunder's TE executors claims a linear: nothing can be said about fix 'caching'")
    return all(answers)


def _distinct(executor: Any) -> bool | None:
    """None when the executor does not claim linears: v1 with TE 2.10 or newer, whose names it cannot import."""
    compile_data = CompileData(fn=_distinct, executors_list=(executor,), disable_preprocessing=True)
    with compile_data_and_stats(compile_data, None), tracectx(TraceCtx()):
        linears = [_bind_linear(), _bind_linear()]
        if not executor.can_execute(linears[0]):
            return None
        first, second = map(vjp_utils.make_aug_forward_and_backward, linears)
    return first[0] is not second[0]


def _bind_linear() -> Any:
    device = devices.to_device(activate().device)
    a, weight, bias = (
        TensorProxy(shape=shape, device=device, dtype=dtypes.float32, requires_grad=True)
        for shape in ((64, 64), (64, 64), (64,))
    )
    return prims.linear.bind(a, weight, bias, output=TensorProxy(like=a))


@contextmanager
def cached_rules() -> Iterator[None]:
    """Cache the gradient rules of stateful symbols, and use the cache."""
    require(
        vjp_utils.make_aug_forward_and_backward,
        f'if cached_result is not None and not getattr(joint_forward_backward, "{FLAG}", False):',
        "_cache[key] = fw_fn, bw_fn",
    )
    require(
        autodiff.grad_transform_on_trace,
        "joint_forward_backward, _ = _get_gradfn_and_executor(bsym)",
        "result = joint_forward_backward(*bsym.args, **bsym.kwargs)",
    )
    require(StatefulExecutor.get_grad_transform, "return disable_caching_split_forward_and_backward(grad_transform)")
    with (
        _own_cache(),
        attribute(vjp_utils, "getattr", _getattr_without_flag),
        attribute(autodiff, "_get_gradfn_and_executor", _rule_through_cache),
    ):
        yield


@contextmanager
def _own_cache() -> Iterator[None]:
    """An empty cache now, and what was in it before afterwards; the dictionary object stays, others hold it."""
    before = dict(vjp_utils._cache)
    vjp_utils._cache.clear()
    try:
        yield
    finally:
        vjp_utils._cache.clear()
        vjp_utils._cache.update(before)


def _getattr_without_flag(thing: Any, name: str, *default: Any) -> Any:
    """What ``vjp_utils`` sees as ``getattr``: a rule never says that it must not be cached."""
    return False if name == FLAG else builtins.getattr(thing, name, *default)


def _rule_through_cache(bsym: Any, **options: Any) -> tuple[Callable[..., Any] | None, Any]:
    """As ``_get_gradfn_and_executor``; for TE's rules, one that runs what the cache has for symbols like ``bsym``.

    Other rules have no state, so it makes no difference where they come from.
    """
    rule, executor = _get_gradfn_and_executor(bsym, **options)
    if rule is None or not getattr(rule, FLAG, False):
        return rule, executor
    forward, backward = vjp_utils.make_aug_forward_and_backward(bsym)

    def through_cache(*args: Any, **kwargs: Any) -> Any:
        output, saved = forward(*args, **kwargs)
        gradients = backward(*saved, *(prims.get_grad(o) for o in tree_iter(output) if isinstance(o, TensorProxy)))
        arguments = inspect.signature(bsym.sym.meta).bind(*args, **kwargs).arguments
        for name, gradient in gradients.items():
            if gradient is not None:
                prims.put_grad(arguments[name], gradient)
        return output

    return through_cache, executor


REVERTS: Mapping[str, Revert] = {"caching": cached_rules}
