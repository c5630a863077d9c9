"""Builds the module that stands in for ``transformer_engine_torch``."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from harness.emulation import enums, kernels
from harness.emulation.guard import EXTENSION
from harness.emulation.kernels import registry


class FP8TensorMeta:
    """Plain holder of ``scale``, ``scale_inv`` and ``amax_history``."""

    scale: Any = None
    scale_inv: Any = None
    amax_history: Any = None


class CommOverlapCore:
    """Base of the communication overlap classes; they exist as annotations only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(registry.not_covered(type(self).__name__))


class CommOverlapBase(CommOverlapCore):
    """Annotation only."""


class CommOverlapP2PBase(CommOverlapCore):
    """Annotation only."""


class CommOverlap(CommOverlapBase):
    """Annotation only."""


class CommOverlapP2P(CommOverlapP2PBase):
    """Annotation only."""


class CommOverlapHelper(CommOverlapCore):
    """Annotation only."""


_CLASSES = (
    FP8TensorMeta,
    CommOverlapCore,
    CommOverlapBase,
    CommOverlapP2PBase,
    CommOverlap,
    CommOverlapP2P,
    CommOverlapHelper,
)


def build() -> ModuleType:
    """A module with the enumerations, classes and emulated functions of the installed TE version.

    Any other name yields a function that raises NotImplementedError when it is called.
    """
    module = ModuleType(EXTENSION, "CPU emulation of Transformer Engine's PyTorch extension.")
    module.__spec__ = ModuleSpec(EXTENSION, None, origin=__file__)
    module.__file__ = __file__
    names: dict[str, Any] = dict(enums.build())
    names.update({cls.__name__: cls for cls in _CLASSES})
    names.update(kernels.emulated_functions())
    module.__dict__.update(names)
    # "from transformer_engine_torch import *" must bring in what Python code looks up by bare name.
    module.__dict__["__all__"] = sorted(names)
    module.__dict__["__getattr__"] = _unknown_name
    return module


def _unknown_name(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {EXTENSION!r} has no attribute {name!r}")
    return registry.refusing_function(name)
