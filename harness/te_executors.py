"""Thunder's two TE executors under one name each, whatever the release calls their modules.

Since 0.2.6 ``transformer_engineex`` is v2 (functional, stateful symbols); up to 0.2.5 that name is v1 (one
``te_linear_N`` for each linear). Import this only after ``harness.device.activate()``.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from harness.build import random_numbers_kept

_EXECUTORS = "thunder.executors"
_SINCE_0_2_6 = find_spec(f"{_EXECUTORS}.transformer_engine_v1ex") is not None

with warnings.catch_warnings():
    # v1 warns when TE is too new for it (2.10 and later). It then claims no linear, which is what a check looks at.
    warnings.filterwarnings("ignore", message="transformer_engine failed to import")
    _v1 = import_module(f"{_EXECUTORS}.{'transformer_engine_v1ex' if _SINCE_0_2_6 else 'transformer_engineex'}")
    _v2 = import_module(f"{_EXECUTORS}.{'transformer_engineex' if _SINCE_0_2_6 else 'transformer_engine_v2ex'}")

V1_NAME = "transformer_engine_v1_ex" if _SINCE_0_2_6 else "transformer_engine_ex"
V2_NAME = "transformer_engine_ex" if _SINCE_0_2_6 else "transformer_engine_v2_ex"
TRANSFORM_V2_NAME = "TransformerEngineTransform" if _SINCE_0_2_6 else "TransformerEngineTransformV2"
V1_MODULE: str = _v1.__name__
V2_MODULE: str = _v2.__name__

executor_v1: Any = getattr(_v1, V1_NAME)
executor_v2: Any = getattr(_v2, V2_NAME)
TransformV2: Any = getattr(_v2, TRANSFORM_V2_NAME)
"""The transform that goes with ``executor_v2``; instantiate it for each compiled function."""


_PROBE = "_get_num_saved_tensors"
"""It draws random numbers whenever v1 compiles a linear. Every dropout of the step that compiles would drop other
elements than eager does (docs/findings.md, "v1-random-numbers"), and nothing could be said about dropout under v1."""

if hasattr(_v1, _PROBE):
    setattr(_v1, _PROBE, random_numbers_kept()(getattr(_v1, _PROBE)))
