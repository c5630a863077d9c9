"""Matrix products with TE's epilogues.

Everything is row-major: ``out[n, m] = op(B)[n, k] @ op(A)[k, m]``, accumulated in fp32.
Sources: pytorch/csrc/extensions/gemm.cpp; common/gemm/cublaslt_gemm.cu.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from harness.emulation import families, raw, settings
from harness.emulation.dtypes import torch_dtype
from harness.emulation.families import Operand
from harness.emulation.formats import fp8
from harness.emulation.kernels import pointwise
from harness.emulation.kernels.quantize import quantize_values
from harness.emulation.kernels.registry import tex_function

_PLAIN = "plain"


@dataclass(frozen=True)
class _Epilogue:
    """What happens to the accumulator before it is rounded."""

    bias: torch.Tensor | None
    with_bias_grad: bool
    gelu: bool
    gelu_in: torch.Tensor | None
    grad: bool


@tex_function
def generic_gemm(
    A: Any,
    transA: bool,
    B: Any,
    transB: bool,
    D: Any,
    quantizer: Any,
    output_dtype: int | None,
    bias: torch.Tensor | None,
    bias_type: int,
    gelu: bool,
    gelu_in: torch.Tensor | None,
    grad: bool,
    workspace: torch.Tensor,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: torch.Tensor | None = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> list[Any]:
    """One product with epilogue: ``[D, bias gradient, input of GELU, extra_output]``.

    Raises:
        RuntimeError: mismatched shapes, dtypes or scaling schemes, missing buffers, sizes FP8 products do not take.
        NotImplementedError: communication overlap.
    """
    if comm_overlap is not None:
        raise NotImplementedError("GEMM with communication overlap is not covered by the CPU emulation")
    beta = _checked_beta(beta, accumulate)
    low_precision = any(families.is_quantized(side) and families.of_tensor(side).is_fp8 for side in (A, B))
    shape = output_shape(_shape_of(A), transA, _shape_of(B), transB)
    dtype = _output_dtype(A, D, output_dtype)
    _check_destination(D, shape, output_dtype)

    epilogue = _Epilogue(
        bias=bias if bias is not None and bias.numel() and not grad else None,
        with_bias_grad=bias is not None and grad,
        gelu=gelu,
        gelu_in=gelu_in,
        grad=grad,
    )
    if 0 in _shape_of(A) or 0 in _shape_of(B):
        result, bias_grad, gelu_input = _empty_product(shape, B, epilogue, D if accumulate else None)
    else:
        result, bias_grad, gelu_input = _product(
            _operand(A, not transA), transA, _operand(B, transB), transB, alpha, beta, D, epilogue
        )
        result = result.reshape(shape)
    if bias_grad is not None:
        bias_grad = bias_grad.to(dtype)
    pre_gelu = None
    if gelu and not grad:
        gelu_dtype = torch_dtype(bias_type) if low_precision else dtype
        pre_gelu = gelu_input.reshape(shape).to(gelu_dtype) if gelu_input is not None else None
    return [_deliver(result, dtype, quantizer, D, A, B), bias_grad, pre_gelu, extra_output]


def output_shape(a: torch.Size, trans_a: bool, b: torch.Size, trans_b: bool) -> torch.Size:
    """Shape of the product: B's leading dimensions are kept unless B is transposed.

    Raises:
        RuntimeError: the inner dimensions differ.
    """
    a0, a1 = math.prod(a[:-1]), a[-1]
    b0, b1 = math.prod(b[:-1]), b[-1]
    if (a1 if trans_a else a0) != (b0 if trans_b else b1):
        raise RuntimeError(
            f"Invalid matrix dimensions for GEMM (A=({a0},{a1}), transa={trans_a}, B=({b0},{b1}), transb={trans_b})"
        )
    leading = (b1,) if trans_b else tuple(b[:-1])
    return torch.Size([*leading, a0 if trans_a else a1])


def _product(
    a: Operand,
    trans_a: bool,
    b: Operand,
    trans_b: bool,
    alpha: float,
    beta: float,
    destination: Any,
    epilogue: _Epilogue,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """fp32 result [n, m], bias gradient and input of GELU."""
    _check_kinds(a, b)
    left = b.matrix.t() if trans_b else b.matrix
    right = a.matrix.t() if trans_a else a.matrix
    _check_sizes(a, b, left, right)
    accumulator = left @ right
    factor = _combined_factor(a, b, alpha)
    if factor is not None:
        accumulator.mul_(factor)
    if beta != 0.0:
        accumulator.add_(destination.reshape(accumulator.shape).float() * beta)
    return _apply(epilogue, accumulator, b)


def _apply(
    epilogue: _Epilogue, accumulator: torch.Tensor, b: Operand
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    if epilogue.bias is not None:
        accumulator.add_(epilogue.bias.float())
    bias_grad = None
    gelu_input = None
    if epilogue.gelu and epilogue.grad:
        assert epilogue.gelu_in is not None
        accumulator = accumulator * pointwise.dgelu(epilogue.gelu_in.float().reshape(accumulator.shape))
        if epilogue.with_bias_grad:
            bias_grad = accumulator.sum(0)
    elif epilogue.gelu:
        gelu_input = accumulator
        accumulator = pointwise.gelu(accumulator)
    elif epilogue.with_bias_grad:
        bias_grad = b.matrix.sum(0)
        if b.factor is not None:
            bias_grad = bias_grad * b.factor
    return accumulator, bias_grad, gelu_input


def _empty_product(
    shape: torch.Size, b: Any, epilogue: _Epilogue, accumulated: Any
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """No kernel runs: zeros (the bias is not added), or the old contents when accumulating."""
    result = torch.zeros(shape) if accumulated is None else accumulated.float()
    bias_grad = torch.zeros(_shape_of(b)[-1]) if epilogue.with_bias_grad else None
    return result, bias_grad, torch.zeros(shape)


def _deliver(result: torch.Tensor, dtype: torch.dtype, quantizer: Any, destination: Any, a: Any, b: Any) -> Any:
    """Round or quantize the fp32 result, into the destination if there is one."""
    if quantizer is None:
        if destination is None:
            return result.to(dtype)
        raw.write(destination, result)
        return destination
    family = families.of_quantizer(quantizer)
    # Only delayed scaling with per-tensor FP8 inputs is written by the product itself, from the fp32 accumulator.
    fused = family.takes_unrounded and any(_kind(side) == "per-tensor FP8" for side in (a, b))
    values = result if fused else result.to(dtype)
    return quantize_values(values.contiguous(), quantizer, dtype, destination)


def _checked_beta(beta: float | None, accumulate: bool) -> float:
    if accumulate:
        return 1.0 if beta is None else beta
    if beta:
        raise RuntimeError(
            "Trying to use non-zero beta while not accumulating into D tensor. Beta has nothing to be applied to."
        )
    return 0.0


def _output_dtype(a: Any, destination: Any, requested: int | None) -> torch.dtype:
    if requested is not None:
        return torch_dtype(requested)
    return a.dtype if destination is None else destination.dtype


def _check_destination(destination: Any, shape: torch.Size, requested: int | None) -> None:
    if destination is None:
        return
    actual = _shape_of(destination)
    if actual != shape:
        raise RuntimeError(f"GEMM output has invalid dims (expected {tuple(shape)}, got {tuple(actual)})")
    if requested is not None and not families.is_quantized(destination) and destination.dtype != torch_dtype(requested):
        raise RuntimeError(
            f"GEMM output has invalid dtype (expected {torch_dtype(requested)}, found {destination.dtype})"
        )


def _shape_of(tensor: Any) -> torch.Size:
    if families.is_quantized(tensor):
        return families.of_tensor(tensor).shape(tensor)
    return tensor.shape


def _kind(tensor: Any) -> str:
    return families.of_tensor(tensor).kind if families.is_quantized(tensor) else _PLAIN


def _operand(tensor: Any, columnwise: bool) -> Operand:
    if families.is_quantized(tensor):
        return families.of_tensor(tensor).operand(tensor, columnwise)
    return Operand(tensor.reshape(-1, tensor.shape[-1]).float(), None, _PLAIN)


def _combined_factor(a: Operand, b: Operand, alpha: float) -> torch.Tensor | float | None:
    if a.factor is None or b.factor is None:
        return alpha if alpha != 1.0 else None
    factor = a.factor * b.factor if alpha == 1.0 else alpha * a.factor * b.factor
    divisor = a.divisor * b.divisor
    return factor if divisor == 1.0 else factor * fp8.quotient(1.0, torch.tensor(divisor))


def _check_kinds(a: Operand, b: Operand) -> None:
    if a.kind != b.kind:
        raise RuntimeError(
            f"Inputs A and B to GEMM need to have compatible scaling modes, but got A: {a.kind}, B: {b.kind}"
        )


def _check_sizes(a: Operand, b: Operand, left: torch.Tensor, right: torch.Tensor) -> None:
    """What cuBLAS asks of the sizes of quantized operands."""
    (n, k), m = left.shape, right.shape[1]
    if a.kind == "per-tensor FP8":
        always_tn = settings.current().fp8_needs_transpose  # then both operands run along k
        _check_multiple("A", k if always_tn else a.matrix.shape[1], 16, "Leading dimension")
        _check_multiple("B", k if always_tn else b.matrix.shape[1], 16, "Leading dimension")
    elif a.kind == "block FP8":
        if a.two_dimensional and b.two_dimensional:
            raise RuntimeError("Only 1D by 1D, 1D by 2D, and 2D by 1D block scaling GEMM is supported")
        _check_multiple("A", k, 16, "Leading dimension")
        _check_multiple("A", m, 8, "Outer dimension")
        if not b.two_dimensional:
            _check_multiple("B", n, 8, "Outer dimension")


def _check_multiple(operand: str, size: int, multiple: int, what: str) -> None:
    if size % multiple:
        raise RuntimeError(f"{what} requirement on {operand} for FP8 GEMM. Caller must pad.")
