"""Questions about the device and its libraries."""

from __future__ import annotations

from harness.emulation.kernels.registry import tex_function


@tex_function
def get_cudnn_version() -> int:
    """A version that every check of the supported TE releases accepts."""
    return 91500


@tex_function
def get_cublasLt_version() -> int:
    """A version that every check of the supported TE releases accepts."""
    return 130100


@tex_function
def get_num_cublas_streams() -> int:
    """As many as the extension creates."""
    return 4


@tex_function
def get_stream_priority_range(device_id: int = -1) -> tuple[int, int]:
    """Lowest and highest priority of a CUDA stream."""
    return 0, -5


@tex_function
def device_supports_multicast(device_id: int = -1) -> bool:
    """No communication is emulated."""
    return False


@tex_function
def ubuf_built_with_mpi() -> bool:
    """No communication is emulated."""
    return False
