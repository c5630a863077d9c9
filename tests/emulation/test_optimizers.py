"""Optimizer steps and list operations against float64 formulas and torch's own optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformer_engine_torch as tex

SHAPES = [(7, 5), (64,), (3, 4, 5)]
ADAM = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}


def tensors(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype) for shape in SHAPES]


def zeros() -> list[torch.Tensor]:
    return [torch.zeros(shape) for shape in SHAPES]


def adam(step: Any, decoupled: bool, decay: float) -> tuple[Any, ...]:
    """The scalar arguments of an Adam step in the order of the extension."""
    return ADAM["lr"], ADAM["beta1"], ADAM["beta2"], ADAM["epsilon"], step, int(decoupled), 1, decay


def close(actual: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_equals_torch(decoupled: bool, decay: float) -> None:
    parameters, m, v = tensors(), zeros(), zeros()
    reference = [parameter.double().requires_grad_() for parameter in parameters]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind(reference, lr=ADAM["lr"], betas=(0.9, 0.99), eps=1e-8, weight_decay=decay)
    for step in range(1, 4):
        grads = tensors()
        for parameter, grad in zip(reference, grads, strict=True):
            parameter.grad = grad.double()
        optimizer.step()
        tex.multi_tensor_adam(
            65536, torch.zeros(1, dtype=torch.int), [grads, parameters, m, v], *adam(step, decoupled, decay)
        )
    close(parameters, [parameter.detach() for parameter in reference])


def test_adam_with_masters_writes_both() -> None:
    masters, m, v, grads = tensors(), zeros(), zeros(), tensors(torch.bfloat16)
    plain = [master.clone() for master in masters]
    low = [master.bfloat16() for master in masters]
    flag = torch.zeros(1, dtype=torch.int)
    tex.multi_tensor_adam(1, flag, [grads, plain, zeros(), zeros()], *adam(1, True, 0.1))
    tex.multi_tensor_adam(1, flag, [grads, low, m, v, masters], *adam(1, True, 0.1))
    close(masters, plain, 0.0)
    close(low, [master.bfloat16() for master in masters], 0.0)


def test_adam_on_the_two_halves_of_a_float_is_adam_on_the_float() -> None:
    masters, grads = tensors(), tensors(torch.bfloat16)
    flag = torch.zeros(1, dtype=torch.int)
    uppers, remainders = [], []
    for master in masters:
        bits = master.view(torch.int32)
        low = (bits & 0xFFFF).to(torch.int16)
        uppers.append(((bits >> 16) + (low < 0)).to(torch.int16).view(torch.bfloat16))
        remainders.append(low)
    close(uppers, [master.bfloat16() for master in masters], 2**-7)
    tex.multi_tensor_adam(1, flag, [grads, masters, zeros(), zeros()], *adam(1, False, 0.1))
    tex.multi_tensor_adam_param_remainder(1, flag, [grads, uppers, zeros(), zeros(), remainders], *adam(1, False, 0.1))
    for master, upper, remainder in zip(masters, uppers, remainders, strict=True):
        high = upper.view(torch.int16).int()
        joined = (torch.where(remainder < 0, high - 1, high) << 16) | (remainder.int() & 0xFFFF)
        assert torch.equal(joined.view(torch.float32), master)


def test_adam_fp8_quantizes_the_new_parameter() -> None:
    masters, grads = tensors(), tensors()
    plain = [master.clone() for master in masters]
    flag = torch.zeros(1, dtype=torch.int)
    codes = [torch.zeros(shape, dtype=torch.uint8) for shape in SHAPES]
    scales, amaxes, inverses = ([torch.full((1,), value) for _ in SHAPES] for value in (8.0, 0.5, 0.0))
    lists = [grads, codes, zeros(), zeros(), masters, scales, amaxes, inverses]
    tex.multi_tensor_adam(1, flag, [grads, plain, zeros(), zeros()], *adam(1, True, 0.0))
    tex.multi_tensor_adam_fp8(1, flag, lists, *adam(1, True, 0.0), tex.DType.kFloat8E4M3)
    for new, code, amax, inverse in zip(plain, codes, amaxes, inverses, strict=True):
        torch.testing.assert_close(code, (new * 8).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))
        assert amax.item() == max(0.5, new.abs().max().item())
        assert inverse.item() == 0.125


def test_capturable_adam_unscales_and_can_be_skipped() -> None:
    parameters, grads = tensors(), tensors()
    plain, plain_grads = [p.clone() for p in parameters], [grad * 0.5 for grad in grads]
    flag = torch.zeros(1, dtype=torch.int)
    lr, step, inverse = torch.tensor(1e-2), torch.tensor([1], dtype=torch.int), torch.tensor([0.5])
    arguments = (lr, 0.9, 0.99, 1e-8, step, 1, 1, 0.1, inverse)
    tex.multi_tensor_adam(1, flag, [plain_grads, plain, zeros(), zeros()], *adam(1, True, 0.1))
    tex.multi_tensor_adam_capturable(1, flag, [grads, parameters, zeros(), zeros()], *arguments)
    close(parameters, plain, 1e-7)
    close(grads, plain_grads, 0.0)
    before = [p.clone() for p in parameters]
    lists = [grads, parameters, zeros(), zeros(), [p.clone() for p in parameters]]
    tex.multi_tensor_adam_capturable_master(1, torch.ones(1, dtype=torch.int), lists, *arguments)
    close(parameters, before, 0.0)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_torch(nesterov: bool, momentum: float) -> None:
    nesterov = nesterov and momentum > 0
    weights, velocity = tensors(), zeros()
    reference = [weight.double().requires_grad_() for weight in weights]
    optimizer = torch.optim.SGD(reference, lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.01)
    for step in range(3):
        grads = tensors()
        for parameter, grad in zip(reference, grads, strict=True):
            parameter.grad = grad.double() * 0.5
        optimizer.step()
        flag = torch.zeros(1, dtype=torch.int)
        tex.multi_tensor_sgd(
            1, flag, [grads, weights, velocity], 0.01, momentum, 0.0, 0.1, nesterov, step == 0, False, 0.5
        )
    close(weights, [parameter.detach() for parameter in reference])
    before = [weight.clone() for weight in weights]
    tex.multi_tensor_sgd(
        1, torch.ones(1, dtype=torch.int), [tensors(), weights, velocity], 0, 0, 0, 0.1, False, True, False, 1.0
    )
    close(weights, before, 0.0)


def test_norms_scaling_and_the_overflow_flag() -> None:
    values, flag = tensors(), torch.zeros(1, dtype=torch.int)
    total, each = tex.multi_tensor_l2norm(1, flag, [values], True)
    exact = [value.double().norm() for value in values]
    torch.testing.assert_close(each.double(), torch.stack(exact), rtol=1e-6, atol=0)
    torch.testing.assert_close(total.double(), torch.stack(exact).norm().reshape(1), rtol=1e-6, atol=0)
    assert tex.multi_tensor_l2norm(1, flag, [values], False)[1].numel() == 0
    halved = tex.multi_tensor_unscale_l2norm(1, flag, [values], torch.tensor([0.5]), False)[0]
    torch.testing.assert_close(halved, total / 2)
    out = [torch.empty_like(value, dtype=torch.bfloat16) for value in values]
    tex.multi_tensor_scale(1, flag, [values, out], 3.0)
    close(out, [(value * 3).bfloat16() for value in values], 0.0)
    assert flag.item() == 0
    values[1][0] = torch.nan
    tex.multi_tensor_scale(1, flag, [values, out], 3.0)
    assert flag.item() == 1


def test_scales_from_lists_of_maxima() -> None:
    amax = [torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([3.0])]
    scale, inverse = ([torch.zeros(1) for _ in amax] for _ in range(2))
    flag = torch.zeros(1, dtype=torch.int)
    tex.multi_tensor_compute_scale_and_scale_inv(1, flag, [amax, scale, inverse], 448.0, True, 0.0)
    assert [value.item() for value in scale] == [128.0, 1.0, 128.0]
    assert [value.item() for value in inverse] == [1 / 128, 1.0, 1 / 128]
    exponents = [torch.zeros(1, dtype=torch.uint8)]
    tex.multi_tensor_compute_scale_inv_e8m0(1, [[torch.tensor([448.0], dtype=torch.bfloat16)], exponents])
    assert exponents[0].item() == 127
