"""The update of amax histories and scales at the end of a delayed-scaling step.

Source: common/recipe/delayed_scaling.cu.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from harness.emulation.dtypes import FP8_MAX
from harness.emulation.kernels.registry import tex_function

FloatArray = npt.NDArray[np.float32]


@tex_function
def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: torch.Tensor,
    amax_histories: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    amax_compute_algo: str,
    fp8_dtype: int,
    margin: float,
) -> None:
    """Roll each history [length, n], put the newest amax at its end, and compute the next scales [n].

    The newest amax of a column is the reduced one, or the first row of the history where that is 0. A column whose
    newest amax is 0 stays as it is. NaN is stored but never wins a maximum.

    Raises:
        RuntimeError: an unknown algorithm.
    """
    if amax_compute_algo not in ("max", "most_recent"):
        raise RuntimeError(f"Unsupported amax compute algorithm ({amax_compute_algo})")
    scaled_max = np.float32(FP8_MAX[int(fp8_dtype)] * 2.0**-margin)
    reduced = amax_reduction_buffer.detach().flatten().numpy()
    offset = 0
    for history, scale in zip(amax_histories, scales, strict=True):
        columns = history.shape[1]
        # NumPy: the arrays are tiny, torch's overhead per operation would dominate every training step.
        _update(
            history.numpy(), scale.view(-1).numpy(), reduced[offset : offset + columns], amax_compute_algo, scaled_max
        )
        offset += columns


def next_scale(largest: FloatArray, old: FloatArray, scaled_max: np.float32) -> FloatArray:
    """``scaled_max / largest``, at most the largest float; the old scale where ``largest`` is 0, infinite or NaN."""
    usable = np.isfinite(largest) & (largest > 0)
    with np.errstate(over="ignore"):
        quotient = scaled_max / np.where(usable, largest, np.float32(1))
    return np.where(usable, np.minimum(quotient, np.finfo(np.float32).max), old)


def _update(
    history: FloatArray, scale: FloatArray, reduced: FloatArray, algorithm: str, scaled_max: np.float32
) -> None:
    """Update one history [length, n] and its scales [n] in place."""
    newest = np.where(reduced != 0, reduced, history[0])
    moves = newest != 0
    rolled = np.concatenate([history[1:], newest[None]])
    largest = np.where(moves, np.fmax.reduce(rolled, axis=0, initial=0.0), 0.0) if algorithm == "max" else newest
    rolled[0] = 0.0
    if moves.all():
        history[:] = rolled
    else:
        history[:, moves] = rolled[:, moves]
    scale[:] = next_scale(largest.astype(np.float32), scale, scaled_max)
