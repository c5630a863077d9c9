"""The update of amax histories and scales at the end of a delayed-scaling step.

Source: common/recipe/delayed_scaling.cu.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.emulation import raw
from harness.emulation.dtypes import FP8_MAX
from harness.emulation.formats import fp8
from harness.emulation.kernels.registry import tex_function


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
    scaled_max = FP8_MAX[int(fp8_dtype)] * 2.0**-margin
    reduced = amax_reduction_buffer.flatten()
    offset = 0
    for history, scale in zip(amax_histories, scales, strict=True):
        columns = history.shape[1]
        _update(history, scale, reduced[offset : offset + columns], amax_compute_algo, scaled_max)
        offset += columns


def _update(
    history: torch.Tensor, scale: torch.Tensor, reduced: torch.Tensor, algorithm: str, scaled_max: float
) -> None:
    newest = torch.where(reduced != 0, reduced, history[0])
    rolled = torch.cat([history[1:], newest.unsqueeze(0)])
    moves = newest != 0
    if algorithm == "max":
        largest = torch.where(moves, rolled.nan_to_num(nan=0.0, posinf=torch.inf).amax(0), 0.0)
    else:
        largest = newest
    rolled[0] = 0.0
    raw.write(history, torch.where(moves, rolled, history))
    raw.write(scale, fp8.scale_after_step(largest, scale.flatten(), scaled_max).view(scale.shape))
