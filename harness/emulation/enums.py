"""The enumerations of the extension. TE compares some of them member by member when it is imported.

Source of names and values: common/include/transformer_engine/*.h and common/util/pybind_helper.h.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from harness.emulation import settings

_MODULE = "transformer_engine_torch"


class DType(IntEnum):
    """Element types by TE's numbers; compared by integer, as pybind's enumerations are."""

    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The form in which the real extension's members are pickled: checkpoints stay exchangeable.
        return (DType, (int(self),))

    def __str__(self) -> str:
        return f"DType.{self.name}"


DType.__module__ = _MODULE

_BIAS = ("NVTE_NO_BIAS", "NVTE_PRE_SCALE_BIAS", "NVTE_POST_SCALE_BIAS", "NVTE_ALIBI")
_MASK = (
    "NVTE_NO_MASK",
    "NVTE_PADDING_MASK",
    "NVTE_CAUSAL_MASK",
    "NVTE_PADDING_CAUSAL_MASK",
    "NVTE_CAUSAL_BOTTOM_RIGHT_MASK",
    "NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
)
_SOFTMAX = ("NVTE_VANILLA_SOFTMAX", "NVTE_OFF_BY_ONE_SOFTMAX", "NVTE_LEARNABLE_SOFTMAX")
_QKV_FORMAT = (
    "NVTE_SBHD",
    "NVTE_BSHD",
    "NVTE_THD",
    "NVTE_BSHD_2SBHD",
    "NVTE_SBHD_2BSHD",
    "NVTE_THD_2BSHD",
    "NVTE_THD_2SBHD",
    "NVTE_BHSD",
    "NVTE_QKV_Format_NOT_SET",
)
_QKV_LAYOUT = (
    "NVTE_SB3HD",
    "NVTE_SBH3D",
    "NVTE_SBHD_SB2HD",
    "NVTE_SBHD_SBH2D",
    "NVTE_SBHD_SBHD_SBHD",
    "NVTE_BS3HD",
    "NVTE_BSH3D",
    "NVTE_BSHD_BS2HD",
    "NVTE_BSHD_BSH2D",
    "NVTE_BSHD_BSHD_BSHD",
    "NVTE_T3HD",
    "NVTE_TH3D",
    "NVTE_THD_T2HD",
    "NVTE_THD_TH2D",
    "NVTE_THD_THD_THD",
    "NVTE_SBHD_BSHD_BSHD",
    "NVTE_BSHD_SBHD_SBHD",
    "NVTE_THD_BSHD_BSHD",
    "NVTE_THD_SBHD_SBHD",
    "NVTE_Paged_KV_BSHD_BSHD_BSHD",
    "NVTE_Paged_KV_BSHD_SBHD_SBHD",
    "NVTE_Paged_KV_SBHD_BSHD_BSHD",
    "NVTE_Paged_KV_SBHD_SBHD_SBHD",
    "NVTE_Paged_KV_THD_BSHD_BSHD",
    "NVTE_Paged_KV_THD_SBHD_SBHD",
    "NVTE_BHSD_BHSD_BHSD",
    "NVTE_QKV_Layout_NOT_SET",
)
_OVERLAP_ALGORITHM = (
    "BULK_OVERLAP_AG",
    "BULK_OVERLAP_RS",
    "SPLIT_PIPELINED_AG_P2P",
    "SPLIT_PIPELINED_RS",
    "SPLIT_PIPELINED_RS_P2P",
    "ATOMIC_GEMM_RS",
    "ATOMIC_GEMM_AG_P2P",
    "ATOMIC_GEMM_RS_P2P",
    "EXTERNAL_BULK_OVERLAP_AG",
)
_FORWARD_TENSORS = [f"GEMM{i}_{role}" for i in (1, 2, 3) for role in ("INPUT", "WEIGHT", "OUTPUT")]
_BACKWARD_TENSORS = [f"GRAD_{role}{i}" for i in (1, 2, 3) for role in ("OUTPUT", "INPUT")]
_SCALING_MODES = (
    "NVTE_DELAYED_TENSOR_SCALING",
    "NVTE_MXFP8_1D_SCALING",
    "NVTE_BLOCK_SCALING_1D",
    "NVTE_BLOCK_SCALING_2D",
    "NVTE_NVFP4_1D_SCALING",
    "NVTE_INVALID_SCALING",
)


def _enum(name: str, members: Any) -> type[IntEnum]:
    values = members if isinstance(members, dict) else {member: value for value, member in enumerate(members)}
    return IntEnum(name, values, module=_MODULE)  # type: ignore[return-value]


def build() -> dict[str, type[IntEnum]]:
    """All enumerations by name: the union of the supported releases, except where TE compares member sets."""
    return {
        "DType": DType,
        "NVTE_Bias_Type": _enum("NVTE_Bias_Type", _BIAS),
        "NVTE_Mask_Type": _enum("NVTE_Mask_Type", _MASK),
        "NVTE_Softmax_Type": _enum("NVTE_Softmax_Type", _SOFTMAX),
        "NVTE_QKV_Format": _enum("NVTE_QKV_Format", _QKV_FORMAT),
        "NVTE_QKV_Layout": _enum("NVTE_QKV_Layout", _QKV_LAYOUT),
        "NVTE_Fused_Attn_Backend": _enum("NVTE_Fused_Attn_Backend", _attention_backends()),
        "NVTEScalingMode": _enum("NVTEScalingMode", _SCALING_MODES),
        "NVTERoutingMapFormat": _enum("NVTERoutingMapFormat", ("BYTEMAP", "BITMAP_U8")),
        "NVTEQBHistogramMode": _enum("NVTEQBHistogramMode", ("TWO_KERNEL", "FUSED_ATOMIC")),
        "Float8BlockScaleTensorFormat": _enum("Float8BlockScaleTensorFormat", ("GEMM_READY", "COMPACT", "INVALID")),
        "CommOverlapType": _enum("CommOverlapType", ("RS", "AG")),
        "CommOverlapAlgo": _enum("CommOverlapAlgo", _OVERLAP_ALGORITHM),
        "FP8FwdTensors": _enum("FP8FwdTensors", _FORWARD_TENSORS),
        "FP8BwdTensors": _enum("FP8BwdTensors", _BACKWARD_TENSORS),
    }


def _attention_backends() -> dict[str, int]:
    backends = {"NVTE_No_Backend": -1, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2}
    if settings.current().facts.has_short_sequence_attention:
        backends["NVTE_F16_max512_seqlen"] = 0
    return backends
