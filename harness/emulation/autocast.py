"""``torch.autocast`` for rewritten modules: like CUDA's, it can also cast to float32."""

from __future__ import annotations

from typing import Any

import torch


class cpu_autocast(torch.autocast):  # type: ignore[misc]
    """``torch.autocast`` that accepts float32.

    torch switches CPU autocast off for float32; CUDA's accepts it, and te.ops then computes in float32. Only the flags
    that TE reads are set, after torch's own bookkeeping.
    """

    def __init__(self, device_type: str = "cpu", dtype: torch.dtype | None = None, **kwargs: Any) -> None:
        self._wants_fp32 = device_type == "cpu" and dtype is torch.float32 and kwargs.get("enabled", True)
        super().__init__(device_type, dtype=None if self._wants_fp32 else dtype, **kwargs)

    def __enter__(self) -> Any:
        result = super().__enter__()
        if self._wants_fp32:
            torch.set_autocast_dtype("cpu", torch.float32)
        return result
