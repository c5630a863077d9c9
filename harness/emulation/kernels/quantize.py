"""Casting to and from quantized formats.

Sources: pytorch/csrc/extensions/cast.cpp, bias.cpp, transpose.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.emulation import families, raw, storage
from harness.emulation.dtypes import torch_dtype
from harness.emulation.families import float8
from harness.emulation.formats import fp8
from harness.emulation.kernels.registry import tex_function


def quantize_values(
    values: torch.Tensor,
    quantizer: Any,
    dtype: torch.dtype,
    output: Any = None,
    amax: torch.Tensor | None = None,
) -> Any:
    """Quantize ``values`` (contiguous) to a new tensor of nominal ``dtype``, or into ``output``."""
    family = families.of_quantizer(quantizer)
    if values.numel() == 0:
        buffers = family.empty(quantizer, values.shape, values.device)
        if output is not None:
            storage.coerce(output, quantizer, values.shape, buffers)
            return output
        return storage.construct(quantizer, values.shape, dtype, buffers)
    buffers = family.encode(quantizer, values, dtype, amax)
    if output is None:
        return storage.construct(quantizer, values.shape, dtype, buffers)
    storage.update(output, quantizer, values.shape, buffers)
    return output


def finish(result: torch.Tensor, dtype: torch.dtype, quantizer: Any, *, amax_of_rounded: bool = False) -> Any:
    """What a fused kernel does with its fp32 ``result``: round to ``dtype``, or quantize as the quantizer asks.

    Args:
        amax_of_rounded: the largest magnitude is taken after rounding to ``dtype``, where a family takes one at all.
    """
    if quantizer is None:
        return result.to(dtype)
    family = families.of_quantizer(quantizer)
    if family.takes_unrounded:
        return quantize_values(result, quantizer, dtype)
    rounded = result.to(dtype)
    amax = None
    if family.takes_amax_of(quantizer) and result.numel() and not amax_of_rounded:
        amax = fp8.amax(result)
    return quantize_values(rounded, quantizer, dtype, amax=amax)


@tex_function
def quantize(tensor: torch.Tensor, quantizer: Any, output: Any = None, noop: torch.Tensor | None = None) -> Any:
    """Quantize ``tensor``; with ``noop`` equal to 1 the contents of ``output`` stay as they are."""
    values = tensor.contiguous()
    if noop is not None and output is not None and noop.item() == 1.0:
        family = families.of_quantizer(quantizer)
        storage.coerce(output, quantizer, values.shape, family.empty(quantizer, values.shape, values.device))
        return output
    return quantize_values(values, quantizer, values.dtype, output)


@tex_function
def dequantize(input: Any, otype: int) -> torch.Tensor:
    """The values of a quantized tensor in ``otype``."""
    return families.of_tensor(input).decode(input).to(torch_dtype(otype))


@tex_function
def bgrad_quantize(input: torch.Tensor, quantizer: Any) -> list[Any]:
    """``[bias gradient, quantized gradient]``; the bias gradient sums all but the last dimension in fp32."""
    grad = input.contiguous()
    bias_grad = grad.reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32).to(grad.dtype)
    if quantizer is None:
        return [bias_grad, grad]
    return [bias_grad, quantize_values(grad, quantizer, grad.dtype)]


@tex_function
def multi_tensor_quantize(tensor_list: Sequence[torch.Tensor], quantizer_list: Sequence[Any]) -> list[Any]:
    """Each tensor with its quantizer."""
    return [
        quantize_values(tensor.contiguous(), quantizer, tensor.dtype)
        for tensor, quantizer in zip(tensor_list, quantizer_list, strict=True)
    ]


@tex_function
def split_quantize(
    tensor: torch.Tensor, split_sections: Sequence[int], quantizer_list: Sequence[Any], **options: Any
) -> list[Any]:
    """``tensor`` split along its first dimension, each part with its quantizer."""
    parts = torch.split(tensor.contiguous(), list(split_sections))
    return [
        quantize_values(part.contiguous(), quantizer, part.dtype)
        for part, quantizer in zip(parts, quantizer_list, strict=True)
    ]


@tex_function
def create_empty_quantized_tensor(
    quantizer: Any,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | None = None,
    pin_memory: bool = False,
) -> Any:
    """A quantized tensor whose contents are unspecified (2.10 and later; Python code in 2.9)."""
    size = torch.Size(shape)
    family = families.of_quantizer(quantizer)
    buffers = family.empty(quantizer, size, torch.device(device) if device is not None else torch.device("cpu"))
    return storage.construct(quantizer, size, dtype, buffers)


@tex_function
def fp8_transpose(input: torch.Tensor, dtype: int, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The transposed copy of FP8 bytes: ``[..., K]`` to ``[K, ...]``."""
    transposed = float8.transpose(input)
    if out is None:
        return transposed
    raw.write(out, transposed.view(out.shape))
    return out


@tex_function
def compute_amax(input: torch.Tensor, amax: torch.Tensor) -> None:
    """Write the largest magnitude of ``input`` into ``amax`` (fp32[1]); NaN elements are ignored."""
    raw.write(amax, fp8.amax(input).reshape(amax.shape))


@tex_function
def swap_first_dims(tensor: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Transpose the first two dimensions, contiguous.

    Raises:
        RuntimeError: fewer than two dimensions.
    """
    if tensor.dim() < 2:
        raise RuntimeError(f"Invalid input tensor dimensions (shape={tuple(tensor.shape)})")
    swapped = tensor.transpose(0, 1).contiguous()
    if out is None:
        return swapped
    raw.write(out, swapped)
    return out
