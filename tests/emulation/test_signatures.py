"""Every call that the installed TE makes to its extension fits the emulated function, and no call is unknown.

With a release that nobody has tried yet, a failure here names the function, the place and both signatures.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import transformer_engine_torch as tex

from harness.emulation import kernels

NOT_COVERED = frozenset(
    {
        "bgrad_group_quantize",
        "bulk_overlap_ag_with_external_gemm",
        "convert_bshd_to_thd",
        "convert_thd_to_bshd",
        "copy_data_ptrs_to_device",
        "copy_to_kv_cache",
        "cusolvermp_ctx_create",
        "cusolvermp_ctx_destroy",
        "ep_combine",
        "ep_combine_bwd",
        "ep_dispatch",
        "ep_dispatch_bwd",
        "ep_finalize",
        "ep_get_zero_copy",
        "ep_handle_mem_size",
        "ep_initialize",
        "ep_prepare",
        "ep_prepare_and_dispatch",
        "ep_zero_copy_supported",
        "fa_prepare_bwd",
        "fa_prepare_fwd",
        "fp8_block_scaling_compute_partial_amax",
        "fp8_block_scaling_partial_cast",
        "fused_attn_bwd",
        "fused_attn_fwd",
        "fused_moe_aux_loss_bwd",
        "fused_moe_aux_loss_fwd",
        "fused_moe_aux_loss_fwd_graph_safe",
        "fused_qkv_rope_backward",
        "fused_qkv_rope_forward",
        "fused_rope_backward",
        "fused_rope_forward",
        "fused_score_for_moe_aux_loss_bwd",
        "fused_score_for_moe_aux_loss_fwd",
        "fused_topk_with_score_function_bwd",
        "fused_topk_with_score_function_fwd",
        "fused_topk_with_score_function_qb_fwd",
        "get_fused_attn_backend",
        "get_grouped_gemm_setup_workspace_size",
        "group_quantize",
        "group_requantize_inplace",
        "grouped_mlp_experimental",
        "grouped_swizzle_for_gemm",
        "moe_permute_bwd",
        "moe_permute_fwd",
        "moe_unpermute_bwd",
        "moe_unpermute_fwd",
        "multi_tensor_swizzle_scales_for_gemm_unchecked_",
        "multi_tensor_transpose_to_bhsd",
        "mxfp8_scaling_compute_partial_amax",
        "mxfp8_scaling_partial_cast",
        "newton_schulz",
        "nvfp4_2d_multi_tensor_transpose",
        "nvfp4_compute_global_scale",
        "nvfp4_group_quantize_with_amax",
        "nvfp4_multi_tensor_2d_partial_cast",
        "nvfp4_multi_tensor_compute_partial_amax",
        "nvfp4_multi_tensor_fused_scale",
        "nvfp4_quantize_with_amax",
        "scaled_aligned_causal_masked_softmax_backward",
        "scaled_aligned_causal_masked_softmax_forward",
        "scaled_masked_softmax_backward",
        "scaled_masked_softmax_forward",
        "scaled_softmax_backward",
        "scaled_softmax_forward",
        "scaled_upper_triang_masked_softmax_backward",
        "scaled_upper_triang_masked_softmax_forward",
        "splits_to_offsets",
        "splits_to_offsets_multi",
        "te_general_grouped_gemm_for_discrete_in",
        "te_general_grouped_gemm_for_discrete_out",
        "te_general_grouped_gemm_for_grouped_tensor",
        "thd_copy_valid_tokens_from_per_split_to_rank_local",
        "thd_cp_rank_order_to_sequence_order",
        "thd_get_partitioned_indices",
        "thd_grad_correction",
        "thd_out_correction",
        "thd_read_half_tensor",
        "thd_read_second_half_lse",
        "thd_second_half_lse_correction",
        "thd_sequence_order_to_cp_rank_order",
    }
)
"""Attention, mixture of experts, rotary embeddings, communication, distributed optimizers: outside the scope."""

PACKAGE = Path(str(find_spec("transformer_engine").origin)).parent / "pytorch"  # type: ignore[union-attr]


@dataclass(frozen=True)
class Call:
    """One call site of the extension."""

    name: str
    place: str
    positional: int
    keywords: tuple[str, ...]
    exact: bool  # no * or ** in the call


def calls() -> Iterator[Call]:
    """Every ``tex.name(...)`` in TE's PyTorch code."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "onnx_extensions.py":
            continue  # there, tex is a namespace of exported operators
        tree = ast.parse(path.read_bytes())
        aliases = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == "transformer_engine_torch"
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = node.func.value
                if isinstance(target, ast.Name) and target.id in aliases:
                    yield _call(node, f"{path.relative_to(PACKAGE)}:{node.lineno}")


def _call(node: ast.Call, place: str) -> Call:
    assert isinstance(node.func, ast.Attribute)
    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
    keywords = tuple(keyword.arg for keyword in node.keywords if keyword.arg is not None)
    exact = not starred and len(keywords) == len(node.keywords)
    return Call(node.func.attr, place, len(node.args), keywords, exact)


CALLS = [call for call in calls() if not inspect.isclass(getattr(tex, call.name, None))]
EMULATED = kernels.emulated_functions()


def test_the_scan_sees_the_extension_being_used() -> None:
    names = {call.name for call in CALLS}
    assert {"quantize", "generic_gemm", "layernorm_fwd"} <= names | set(EMULATED)
    assert len(CALLS) > 100


@pytest.mark.parametrize("name", sorted({call.name for call in CALLS if call.name in EMULATED}))
def test_every_call_fits_the_emulated_signature(name: str) -> None:
    signature = inspect.signature(EMULATED[name])
    for call in CALLS:
        if call.name == name and call.exact:
            try:
                signature.bind(*[None] * call.positional, **dict.fromkeys(call.keywords))
            except TypeError as error:
                pytest.fail(
                    f"TE calls tex.{name} at {call.place} with {call.positional} positional arguments and keywords "
                    f"{call.keywords}, but the emulation has {name}{signature}: {error}"
                )


def test_every_function_is_emulated_or_known_to_be_outside_the_scope() -> None:
    unknown = sorted({call.name for call in CALLS} - set(EMULATED) - NOT_COVERED)
    assert not unknown, f"the installed TE calls functions that nobody has decided about: {unknown}"


def test_nothing_is_listed_as_missing_that_is_emulated() -> None:
    assert not NOT_COVERED & set(EMULATED)
