"""Gated activations with row scales, grouped products, row padding, scale transposes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformer_engine_torch as tex

from harness.emulation import launchers
from harness.emulation.formats import fp4

ROWS, HIDDEN = 12, 64


def swiglu(x: torch.Tensor) -> torch.Tensor:
    first, gate = x.chunk(2, -1)
    return torch.nn.functional.silu(first) * gate


def clamped(x: torch.Tensor) -> torch.Tensor:
    first, gate = x.chunk(2, -1)
    first, gate = first.clamp(max=1.5), gate.clamp(-1.5, 1.5) + 0.5
    return first * torch.sigmoid(1.3 * first) * gate


def situ(x: torch.Tensor) -> torch.Tensor:
    first, gate = x.chunk(2, -1)
    return 3.0 * torch.tanh(first / 3.0) * torch.sigmoid(first) * 5.0 * torch.tanh(gate / 5.0)


def srelu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) ** 2


CASES: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor], tuple[float, ...]]] = {
    "scaled_swiglu": ("scaled_dswiglu", swiglu, ()),
    "scaled_clamped_swiglu": ("scaled_clamped_dswiglu", clamped, (1.5, 1.3, 0.5)),
    "scaled_situglu": ("scaled_dsituglu", situ, (3.0, 5.0)),
    "scaled_srelu": ("scaled_dsrelu", srelu, ()),
}


@pytest.mark.parametrize("name", CASES)
def test_scaled_activations_and_their_gradients(name: str) -> None:
    backward, reference, parameters = CASES[name]
    x, scales = torch.randn(3, 4, 2 * HIDDEN) * 2, torch.rand(3, 4)
    x64, scales64 = x.double().requires_grad_(), scales.double().requires_grad_()
    y64 = reference(x64) * scales64.unsqueeze(-1)
    grad = torch.randn(y64.shape)
    y64.backward(grad.double())
    y = getattr(tex, name)(x, scales, None, *parameters)
    dx, dscales = getattr(tex, backward)(grad, x, scales, None, *parameters)
    torch.testing.assert_close(y.double(), y64.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dx.double(), x64.grad, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(dscales.double(), scales64.grad, rtol=1e-5, atol=1e-4)
    assert getattr(tex, backward)(grad, x, scales, None, *parameters, compute_scale_grad=False)[1] is None
    with pytest.raises(RuntimeError, match="one scale per input row"):
        getattr(tex, name)(x, scales[:2], None, *parameters)


def test_interleaved_halves() -> None:
    x, scales = torch.randn(ROWS, 2 * HIDDEN), torch.ones(ROWS)
    chunks = x.view(ROWS, -1, 2, 16)
    separate = torch.cat([chunks[:, :, 0].flatten(1), chunks[:, :, 1].flatten(1)], dim=1)
    y = tex.scaled_swiglu(x, scales, None, glu_interleave_size=16)
    torch.testing.assert_close(y, tex.swiglu(separate, None), rtol=0, atol=0)
    grad = torch.randn(ROWS, HIDDEN)
    dx, _ = tex.scaled_dswiglu(grad, x, scales, None, glu_interleave_size=16)
    expected = tex.dswiglu(grad, separate, None)
    first, gate = expected.chunk(2, dim=1)
    parts = torch.stack([first.view(ROWS, -1, 16), gate.view(ROWS, -1, 16)], dim=2)
    torch.testing.assert_close(dx, parts.flatten(1), rtol=0, atol=0)


def test_situglu_and_glu() -> None:
    x = torch.randn(ROWS, 2 * HIDDEN)
    torch.testing.assert_close(tex.situglu(x, None, 3.0, 5.0), situ(x))
    torch.testing.assert_close(tex.glu(x, None), torch.sigmoid(x[:, :HIDDEN]) * x[:, HIDDEN:])


@pytest.mark.parametrize("single_output", [False, True])
def test_grouped_products(single_output: bool) -> None:
    splits = [3, 0, 5]
    weights = [torch.randn(16, 32) for _ in splits]
    x = torch.randn(sum(splits), 32)
    parts = list(x.split(splits))
    biases = [torch.randn(16) for _ in splits]
    outputs = [torch.full((sum(splits), 16), torch.nan)] if single_output else [torch.empty(n, 16) for n in splits]
    none = [torch.empty(0)] * len(splits)
    tex.te_general_grouped_gemm(
        weights, True, parts, False, outputs, tex.DType.kFloat32, splits, biases, tex.DType.kFloat32,
        single_output, none, False, [torch.empty(1)], 1, False, False, 0,
    )  # fmt: skip
    expected = [part @ weight.t() + bias for part, weight, bias in zip(parts, weights, biases, strict=True)]
    actual = outputs[0] if single_output else torch.cat(outputs)
    torch.testing.assert_close(actual, torch.cat(expected))


def test_grouped_bias_gradients() -> None:
    splits = [3, 5]
    x, grads = [torch.randn(n, 32) for n in splits], [torch.randn(n, 16) for n in splits]
    outputs, biases = [torch.empty(16, 32) for _ in splits], [torch.empty(16) for _ in splits]
    tex.te_general_grouped_gemm(
        x, False, grads, True, outputs, tex.DType.kFloat32, splits, biases, tex.DType.kFloat32,
        False, [torch.empty(0)] * 2, True, [torch.empty(1)], 1, False, False, 0,
    )  # fmt: skip
    for a, b, out, bias in zip(x, grads, outputs, biases, strict=True):
        torch.testing.assert_close(out, b.t() @ a)
        torch.testing.assert_close(bias, b.sum(0))


def test_row_padding_and_back() -> None:
    x = torch.randn(7, 4)
    padded = torch.full((16, 4), torch.nan)
    tex.fused_multi_row_padding(x, padded, [3, 4], [8, 8])
    assert padded[3:8].count_nonzero() == padded[12:].count_nonzero() == 0
    torch.testing.assert_close(padded[8:12], x[3:])
    back = torch.empty(7, 4)
    tex.fused_multi_row_unpadding(padded, back, [8, 8], [3, 4])
    torch.testing.assert_close(back, x)
    with pytest.raises(RuntimeError, match="must match"):
        tex.fused_multi_row_padding(x, padded, [7], [8, 8])


def test_fp4_data_and_scale_transposes() -> None:
    codes = torch.randint(0, 16, (32, 48), dtype=torch.uint8)
    torch.testing.assert_close(fp4.unpack(tex.nvfp4_data_transpose(fp4.pack(codes), out=None)), codes.t())
    tiles = torch.randint(1, 255, (2, 3), dtype=torch.uint8)
    rowwise = torch.zeros(128, 4, dtype=torch.uint8)
    rowwise[:32, :3] = tiles.repeat_interleave(16, dim=0)
    columnwise = torch.full((128, 4), 7, dtype=torch.uint8)
    tex.nvfp4_2d_scale_transpose(rowwise, columnwise, 2, 3)
    torch.testing.assert_close(columnwise[:48, :2], tiles.t().repeat_interleave(16, dim=0))
    assert columnwise[48:].count_nonzero() == columnwise[:, 2:].count_nonzero() == 0


def test_grouped_bias_gradient_of_a_triton_kernel() -> None:
    dy, scales, bias = torch.randn(6, 4), torch.rand(6), torch.randn(3, 4)
    offsets = torch.tensor([0, 2, 2, 6])
    dbias, dscales = torch.ones(3, 4), torch.zeros(6)
    launchers.launch_grouped_dbias(dy, offsets, dbias, scales, bias, dscales)
    weighted = dy * scales.view(-1, 1)
    torch.testing.assert_close(dbias, 1 + torch.stack([weighted[:2].sum(0), torch.zeros(4), weighted[2:].sum(0)]))
    torch.testing.assert_close(dscales, (dy * bias[[0, 0, 2, 2, 2, 2]]).sum(1))
    plain = torch.zeros(3, 4)
    launchers.launch_grouped_dbias(dy, offsets, plain, None, None, None)
    torch.testing.assert_close(plain[2], dy[2:].sum(0))
