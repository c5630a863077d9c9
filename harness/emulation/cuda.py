"""What ``torch.cuda`` means inside rewritten modules: one emulated GPU that is the CPU.

Streams and events are immediate, so they only have to exist. Whatever is missing here is missing on purpose and
raises AttributeError with the name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from harness.emulation import settings
from harness.emulation.autocast import cpu_autocast

_SM_COUNT = 132  # of an H100; TE only passes it on


class Stream:
    """A stream whose work is always done."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def wait_stream(self, stream: Stream) -> None:
        """Nothing is ever pending."""

    def wait_event(self, event: Event) -> None:
        """Nothing is ever pending."""

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def record_event(self, event: Event | None = None) -> Event:
        """An event that has already happened."""
        return event or Event()


class Event:
    """An event that has already happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Stream | None = None) -> None:
        """Immediate."""

    def wait(self, stream: Stream | None = None) -> None:
        """Immediate."""

    def synchronize(self) -> None:
        """Immediate."""

    def query(self) -> bool:
        """Always done."""
        return True


class CUDAGraph:
    """Graph capture is not emulated. Without ``register_generator_state`` TE takes its plain RNG path."""

    def __init__(self) -> None:
        _refuse("torch.cuda.CUDAGraph")


class _Generators:
    """``default_generators[i]``: every device is the CPU."""

    def __getitem__(self, index: object) -> torch.Generator:
        return torch.default_generator

    def __len__(self) -> int:
        return 1


default_generators = _Generators()
_current_stream = Stream()


def is_available() -> bool:
    """The emulated GPU is there."""
    return True


def is_initialized() -> bool:
    """The emulated GPU needs no initialisation."""
    return True


def device_count() -> int:
    """One."""
    return 1


def current_device() -> torch.device:
    """The CPU; every ``device=torch.cuda.current_device()`` then creates CPU tensors."""
    return torch.device("cpu")


def device(target: object) -> AbstractContextManager[None]:
    """``with torch.cuda.device(...)``: nothing to switch."""
    return nullcontext()


def set_device(target: object) -> None:
    """Nothing to switch."""


def get_device_name(target: object = None) -> str:
    """A name that says what it is."""
    return "CPU emulation"


def get_device_capability(target: object = None) -> tuple[int, int]:
    """The capability given at installation."""
    return settings.current().compute_capability


def get_device_properties(target: object = None) -> SimpleNamespace:
    """The properties that TE reads."""
    major, minor = settings.current().compute_capability
    return SimpleNamespace(
        major=major,
        minor=minor,
        multi_processor_count=_SM_COUNT,
        name=get_device_name(),
        total_memory=80 * 2**30,
    )


def current_stream(target: object = None) -> Stream:
    """The only stream."""
    return _current_stream


def default_stream(target: object = None) -> Stream:
    """The only stream."""
    return _current_stream


def stream(target: Stream | None) -> AbstractContextManager[None]:
    """``with torch.cuda.stream(...)``: nothing to switch."""
    return nullcontext()


def synchronize(target: object = None) -> None:
    """CPU operations are synchronous."""


def empty_cache() -> None:
    """There is no cache."""


def reset_peak_memory_stats(target: object = None) -> None:
    """Memory is not accounted."""


def is_current_stream_capturing() -> bool:
    """Never: graphs are not emulated."""
    return False


def is_bf16_supported() -> bool:
    """Yes."""
    return True


def get_rng_state(target: object = "cpu") -> torch.Tensor:
    """State of the CPU generator, which serves as the GPU's."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, target: object = "cpu") -> None:
    """Set the CPU generator, which serves as the GPU's."""
    torch.set_rng_state(state)


def manual_seed(seed: int) -> None:
    """Seed the CPU generator, which serves as the GPU's."""
    torch.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def graph(*args: Any, **kwargs: Any) -> NoReturn:
    """Not emulated."""
    _refuse("torch.cuda.graph")


def graph_pool_handle() -> NoReturn:
    """Not emulated."""
    _refuse("torch.cuda.graph_pool_handle")


def _lazy_call(callback: Callable[[], Any], **kwargs: Any) -> None:
    callback()


def _lazy_init() -> None:
    pass


def _gpu_autocast(enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> cpu_autocast:
    return cpu_autocast("cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


amp = SimpleNamespace(autocast=_gpu_autocast, GradScaler=torch.amp.GradScaler)
nvtx = SimpleNamespace(
    range=lambda *args, **kwargs: nullcontext(), range_push=lambda name: None, range_pop=lambda: None
)


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(f"{name} is not covered by the CPU emulation of this project")
