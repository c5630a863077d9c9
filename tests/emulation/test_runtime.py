"""What rewritten modules call: the CUDA facade, autocast, the stand-in for torch.compile, stubs, dropout."""

from __future__ import annotations

import math

import pytest
import torch
import transformer_engine_torch as tex
from transformer_engine.pytorch.tensor.float8_tensor import Float8Quantizer

from harness.emulation import cuda, stubs
from harness.emulation.autocast import cpu_autocast
from harness.emulation.fuser import fp32_interior


def gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = x + bias
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def test_fused_functions_round_once() -> None:
    x, bias = torch.randn(64, 16).bfloat16(), torch.randn(16).bfloat16()
    fused = fp32_interior(gelu)(x, bias)
    torch.testing.assert_close(fused, gelu(x.float(), bias.float()).bfloat16(), rtol=0, atol=0)
    assert not torch.equal(fused, gelu(x, bias))


def test_fused_functions_return_what_eager_code_returns() -> None:
    def several(x: torch.Tensor, factor: float, *, keep: torch.Tensor):
        return x * factor, x.float(), keep + 1, "text"

    x, keep = torch.randn(4).half(), torch.arange(4)
    product, wide, integers, text = fp32_interior(several)(x, 2.0, keep=keep)
    assert (product.dtype, wide.dtype, integers.dtype, text) == (torch.float16, torch.float32, torch.int64, "text")
    assert fp32_interior(gelu)(torch.ones(2), torch.ones(2)).dtype == torch.float32
    mixed = fp32_interior(gelu)(torch.ones(2).bfloat16(), torch.ones(2))
    assert mixed.dtype == torch.float32


def test_fused_functions_are_differentiable() -> None:
    x = torch.randn(8).bfloat16().requires_grad_()
    fp32_interior(gelu)(x, torch.zeros(8).bfloat16()).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16


def test_autocast_to_fp32_reaches_te() -> None:
    with cpu_autocast("cpu", dtype=torch.float32):
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    with cpu_autocast("cpu", dtype=torch.float16):
        assert torch.get_autocast_dtype("cpu") == torch.float16


def test_the_facade_is_a_quiet_gpu() -> None:
    assert cuda.is_available()
    assert cuda.current_device() == torch.device("cpu")
    with cuda.stream(cuda.Stream()), cuda.device(0), cuda.nvtx.range("x"):
        cuda.current_stream().wait_stream(cuda.Stream())
        cuda.synchronize()
    assert cuda.Event().query()
    with pytest.raises(NotImplementedError, match="CUDAGraph"):
        cuda.CUDAGraph()
    assert not hasattr(cuda, "memory_snapshot")


def test_the_facade_shares_the_cpu_generator() -> None:
    state = cuda.get_rng_state()
    first = torch.rand(3)
    cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)
    assert cuda.default_generators[0] is torch.default_generator


def test_stubs_work_at_import_time_and_refuse_to_run() -> None:
    triton = stubs.optional_import("triton")

    @triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])
    @triton.jit
    def kernel(x: object) -> None: ...

    with pytest.raises(NotImplementedError, match="kernel"):
        kernel[(1,)](torch.zeros(1))
    with pytest.raises(NotImplementedError, match=r"einops\.rearrange"):
        stubs.optional_import("einops.rearrange")(torch.zeros(1), "a -> a")


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_rate_scale_and_mask(p: float) -> None:
    x = torch.randn(64, 1024).bfloat16()
    y, mask = tex.dropout_fwd(x, p)
    assert mask.shape == (x.numel() // 8,)
    kept = y != 0
    rate = math.floor(256 * p) / 256
    deviation = 5 * math.sqrt(rate * (1 - rate) / x.numel())
    assert abs((~kept).double().mean().item() - rate) < deviation
    expected = (x.float() * (1 / (1 - p))).bfloat16()
    torch.testing.assert_close(y[kept], expected[kept], rtol=0, atol=0)
    grad = torch.ones_like(x)
    dx = tex.dropout_bwd(grad, mask, p)
    assert torch.equal(dx != 0, kept | (x == 0) & (dx != 0))
    out = torch.empty_like(x)
    assert tex.dropout_bwd(grad, mask, p, out) is out
    assert torch.equal(out, dx)


def test_dropout_of_a_quantized_tensor() -> None:
    quantizer = Float8Quantizer(torch.ones(1), torch.zeros(1), tex.DType.kFloat8E4M3)
    x = tex.quantize(torch.randn(16, 16).bfloat16(), quantizer)
    y, _ = tex.dropout_fwd(x, 0.0)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, tex.dequantize(x, tex.DType.kBFloat16), rtol=0, atol=0)
