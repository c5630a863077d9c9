"""One hash over everything that a case showed, to tell whether two runs of it are equal to the last bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from harness.run import Verdict
from harness.subjects.base import Observation


def fingerprint(verdict: Verdict) -> str:
    """A hash of findings, refusal, and all bits of all tensors of both sides."""
    text = hashlib.sha256()
    for finding in verdict.findings:
        text.update(f"{finding.bucket}\n".encode())
    text.update(f"{verdict.refusal} {verdict.te_linears}".encode())
    for observation in (verdict.run.subject, verdict.run.reference):
        for name, tensor in tensors(observation):
            text.update(f"{name} {tensor.dtype} {[*tensor.shape]}".encode())
            text.update(_bytes(tensor))
    return text.hexdigest()[:16]


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # A single element may have any stride, and a view as bytes wants 1.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def tensors(observation: Observation) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that was observed, with a name."""
    for index, step in enumerate(observation.steps):
        for number, output in enumerate(step.outputs):
            yield f"{index} output {number}", output
        for name, gradient in {"input": step.input_gradient, **step.parameter_gradients}.items():
            if gradient is not None:
                yield f"{index} gradient {name}", gradient
        for path, states in step.fp8_state.items():
            for name, state in states.items():
                yield f"{index} scale {path} {name}", state.scale
                yield f"{index} amax {path} {name}", state.amax_history
