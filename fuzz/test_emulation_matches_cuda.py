"""The CPU emulation against the real extension, function by function. Needs a GPU and the compiled extension.

Casts, scales and layouts must agree bit for bit. Where the GPU's order of operations is its own (products,
reductions, tanh and exp), results must agree within a bound that is stated with each test.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from harness.gpus import visible_gpus

# Not asked of torch, whose import takes seconds in every worker.
if not visible_gpus():
    pytest.skip(
        "no CUDA device: the emulation can only be compared with the real extension on a GPU", allow_module_level=True
    )

import torch

if not torch.cuda.is_available():
    pytest.skip("torch cannot use the CUDA device", allow_module_level=True)

try:
    import transformer_engine.pytorch  # noqa: F401  (loads the extension)
    import transformer_engine_torch as real
except (ImportError, RuntimeError, OSError) as error:
    # A run on CUDA has refused to start then; this is one with --tefuzz-device cpu.
    pytest.skip(f"the real extension cannot be imported: {error}", allow_module_level=True)

from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer
from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from transformer_engine.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

from harness.emulation import is_installed, kernels, settings, storage

if is_installed():
    pytest.skip(
        "this process runs on the emulation; start another one with --tefuzz-device cuda", allow_module_level=True
    )

CAPABILITY = torch.cuda.get_device_capability()
settings.configure(CAPABILITY)
EMULATED = kernels.emulated_functions()

SEEDS = pytest.mark.parametrize("seed", range(4))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
FORMATS = pytest.mark.parametrize("fp8_dtype", [real.DType.kFloat8E4M3, real.DType.kFloat8E5M2], ids=str)
BLACKWELL = pytest.mark.skipif(CAPABILITY < (10, 0), reason="the format needs compute capability 10.0")
ACTIVATIONS = ("relu", "gelu", "silu", "qgelu", "srelu")
GATED = ("reglu", "geglu", "swiglu", "qgeglu", "sreglu")


def data(seed: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """CPU values over many binades, with a few zeros, infinities and NaN in the odd seeds."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator) * torch.exp(3 * torch.randn(rows, 1, generator=generator))
    if seed % 2:
        values[0, :4] = torch.tensor([0.0, -0.0, torch.inf, torch.nan])
    return values.to(dtype)


def delayed(device: str, fp8_dtype: Any = real.DType.kFloat8E4M3, scale: float = 0.37) -> Float8Quantizer:
    return Float8Quantizer(torch.tensor([scale], device=device), torch.zeros(1, device=device), fp8_dtype)


def on_cpu(quantizer: Any) -> Any:
    """The quantizer with every tensor that it holds on the CPU."""
    moved = copy.copy(quantizer)
    for name, value in vars(quantizer).items():
        if isinstance(value, torch.Tensor):
            setattr(moved, name, value.cpu())
    return moved


def same_buffers(emulated: Any, actual: Any) -> None:
    """Bit equality of everything that a quantized tensor stores."""
    for name, buffer in storage.buffers_of(emulated).items():
        other = getattr(actual, name)
        assert (buffer is None) == (other is None), f"{name} is present on one side only"
        if buffer is not None:
            torch.testing.assert_close(
                buffer, other.cpu(), rtol=0, atol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
            )


def near(emulated: torch.Tensor, actual: torch.Tensor, relative: float) -> None:
    """Within ``relative`` of the largest element."""
    scale = actual.float().abs().max().item()
    torch.testing.assert_close(emulated, actual.cpu(), rtol=0, atol=relative * max(scale, 1e-30), equal_nan=True)


def compare_quantize(quantizer: Any, values: torch.Tensor) -> None:
    emulated_quantizer = on_cpu(quantizer)
    actual = real.quantize(values.cuda(), quantizer)
    same_buffers(EMULATED["quantize"](values, emulated_quantizer), actual)
    if isinstance(quantizer, Float8Quantizer):
        assert emulated_quantizer.amax.item() == quantizer.amax.item()


@SEEDS
@DTYPES
@FORMATS
def test_delayed_scaling(seed: int, dtype: torch.dtype, fp8_dtype: Any) -> None:
    compare_quantize(delayed("cuda", fp8_dtype), data(seed, 48, 64, dtype))


@SEEDS
@DTYPES
@FORMATS
@pytest.mark.parametrize("force_pow_2", [False, True])
def test_current_scaling(seed: int, dtype: torch.dtype, fp8_dtype: Any, force_pow_2: bool) -> None:
    quantizer = Float8CurrentScalingQuantizer(fp8_dtype, device="cuda", force_pow_2_scales=force_pow_2)
    compare_quantize(quantizer, data(seed, 48, 64, dtype))


@SEEDS
@DTYPES
@FORMATS
@pytest.mark.parametrize("dimensions", [1, 2])
def test_block_scaling(seed: int, dtype: torch.dtype, fp8_dtype: Any, dimensions: int) -> None:
    quantizer = Float8BlockQuantizer(fp8_dtype, rowwise=True, columnwise=True, block_scaling_dim=dimensions)
    # Padding is not initialised on the GPU: sizes without any.
    compare_quantize(quantizer, data(seed, 512, 512, dtype))


@BLACKWELL
@SEEDS
@DTYPES
@FORMATS
def test_mxfp8(seed: int, dtype: torch.dtype, fp8_dtype: Any) -> None:
    compare_quantize(MXFP8Quantizer(fp8_dtype), data(seed, 128, 128, dtype))


@BLACKWELL
@SEEDS
@pytest.mark.parametrize("square", [False, True])
def test_nvfp4(seed: int, square: bool) -> None:
    compare_quantize(NVFP4Quantizer(with_2d_quantization=square), data(2 * seed, 128, 128, torch.bfloat16))


@SEEDS
@pytest.mark.parametrize("name", [*ACTIVATIONS, *GATED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_activations(seed: int, name: str, dtype: torch.dtype) -> None:
    """tanhf and expf of the GPU are accurate to 2 ulp; a bf16 result may then round to its neighbour."""
    x = data(2 * seed, 32, 64, dtype).clamp(-30, 30)
    relative = 1e-5 if dtype == torch.float32 else 2**-7
    near(EMULATED[name](x, None), getattr(real, name)(x.cuda(), None), relative)
    grad = data(2 * seed + 8, 32, 64 if name in ACTIVATIONS else 32, dtype)
    near(EMULATED[f"d{name}"](grad, x, None), getattr(real, f"d{name}")(grad.cuda(), x.cuda(), None), relative)


@SEEDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("zero_centered", [False, True])
def test_norms(seed: int, dtype: torch.dtype, zero_centered: bool) -> None:
    """Row reductions of 256 fp32 terms in another order."""
    x, grad = data(2 * seed, 32, 256, dtype), data(2 * seed + 8, 32, 256, dtype)
    gamma, beta = torch.randn(256).to(dtype), torch.randn(256).to(dtype)
    otype = {torch.float32: real.DType.kFloat32, torch.bfloat16: real.DType.kBFloat16}[dtype]
    relative = 1e-5 if dtype == torch.float32 else 2**-7

    def both(name: str, *args: Any) -> tuple[list[Any], list[Any]]:
        moved = [value.cuda() if isinstance(value, torch.Tensor) else value for value in args]
        return list(EMULATED[name](*args)), list(getattr(real, name)(*moved))

    y, expected = both("layernorm_fwd", x, gamma, beta, 1e-5, None, None, otype, 0, zero_centered)
    z, expected_z = both("rmsnorm_fwd", x, gamma, 1e-5, None, None, otype, 0, zero_centered)
    backward, expected_backward = both("layernorm_bwd", grad, x, y[1], y[2], gamma, 0, zero_centered)
    backward_z, expected_backward_z = both("rmsnorm_bwd", grad, x, z[2], gamma, 0, zero_centered)
    for mine, theirs in (
        (y, expected),
        (z, expected_z),
        (backward, expected_backward),
        (backward_z, expected_backward_z),
    ):
        for one, other in zip(mine, theirs, strict=True):
            if one is not None:
                near(one, other, relative)


def gemm(
    function: Callable[..., Any], a: Any, b: Any, layout: str, dtype: Any, device: str, **options: Any
) -> list[Any]:
    workspace = torch.empty(32 * 2**20 if device == "cuda" else 1, dtype=torch.uint8, device=device)
    return function(
        a, layout[0] == "T", b, layout[1] == "T", None, None, dtype, options.get("bias"), real.DType.kBFloat16,
        options.get("gelu", False), None, False, workspace, workspace.numel(), False, True,
    )  # fmt: skip


@SEEDS
@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
@pytest.mark.parametrize("kind", ["bf16", "delayed", "block"])
def test_products(seed: int, layout: str, kind: str) -> None:
    """FP8 tensor cores accumulate with about 14 bits: 1e-3 of the largest result covers K = 256."""
    a, b = data(2 * seed, 128, 256, torch.bfloat16), data(2 * seed + 8, 64, 256, torch.bfloat16)
    a = a if layout[0] == "T" else a.t().contiguous()
    b = b.t().contiguous() if layout[1] == "T" else b
    if kind == "bf16":
        mine, theirs = (a, b), (a.cuda(), b.cuda())
    else:
        make = (lambda: delayed("cuda")) if kind == "delayed" else _vectors
        quantizers = make(), make()
        theirs = tuple(real.quantize(t.cuda(), q) for t, q in zip((a, b), quantizers, strict=True))
        mine = tuple(EMULATED["quantize"](t, on_cpu(make())) for t in (a, b))
    bias = torch.randn(128).bfloat16()
    for options in ({}, {"bias": bias}):
        moved = {name: value.cuda() for name, value in options.items()}
        emulated = gemm(EMULATED["generic_gemm"], *mine, layout, real.DType.kBFloat16, "cpu", **options)[0]
        near(emulated, gemm(real.generic_gemm, *theirs, layout, real.DType.kBFloat16, "cuda", **moved)[0], 5e-3)


def _vectors() -> Float8BlockQuantizer:
    return Float8BlockQuantizer(real.DType.kFloat8E4M3, rowwise=True, columnwise=True, block_scaling_dim=1)


@SEEDS
@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
def test_scale_update(seed: int, algorithm: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    history, scale = torch.rand(5, 3, generator=generator), torch.rand(3, generator=generator) + 1
    reduced = torch.rand(3, generator=generator)
    reduced[seed % 3] = [0.0, torch.inf, torch.nan, 1e-40][seed]
    device = [t.cuda() for t in (reduced, history, scale)]
    for function, tensors in (
        (EMULATED["fused_amax_and_scale_update_after_reduction"], (reduced, history, scale)),
        (real.fused_amax_and_scale_update_after_reduction, device),
    ):
        function(tensors[0], [tensors[1]], [tensors[2]], algorithm, real.DType.kFloat8E4M3, 1)
    torch.testing.assert_close(history, device[1].cpu(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(scale, device[2].cpu(), rtol=0, atol=0)


@SEEDS
@pytest.mark.parametrize("mode", [0, 1])
def test_adam(seed: int, mode: int) -> None:
    lists = [[data(2 * seed + i, 16, 32, torch.float32)] for i in range(2)] + [[torch.zeros(16, 32)] for _ in range(2)]
    moved = [[tensor.cuda() for tensor in tensors] for tensors in lists]
    arguments = (1e-3, 0.9, 0.99, 1e-8, 1, mode, 1, 0.1)
    EMULATED["multi_tensor_adam"](65536, torch.zeros(1, dtype=torch.int), lists, *arguments)
    real.multi_tensor_adam(65536, torch.zeros(1, dtype=torch.int, device="cuda"), moved, *arguments)
    for mine, theirs in zip(lists, moved, strict=True):
        near(mine[0], theirs[0], 1e-6)
