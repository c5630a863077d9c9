"""Which GPUs there are and which worker gets which, without importing torch: a process has to choose before that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import takewhile

VARIABLE = "CUDA_VISIBLE_DEVICES"
LIST_SECONDS = 30.0


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them; none where there is no driver."""
    listed = environment.get(VARIABLE)
    if listed is None:
        return tuple(str(number) for number in range(_count(environment)))
    # As CUDA reads it: the first name that is no device ends the list.
    return tuple(takewhile(_is_device, (name.strip() for name in listed.split(","))))


def _is_device(name: str) -> bool:
    return bool(name) and name != "-1" and name.lower() not in ("nodevfiles", "void")


def _count(environment: Mapping[str, str]) -> int:
    tool = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if tool is None:
        return 0
    try:
        done = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False, timeout=LIST_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(re.findall(r"^GPU \d+:", done.stdout, re.MULTILINE)) if done.returncode == 0 else 0


def workers(per_gpu: int) -> int | None:
    """How many workers ``-n auto`` starts: some for each GPU; None where there is none, and cores count."""
    return len(visible_gpus()) * per_gpu or None


def least_used(gpus: Iterable[str], used: Iterable[str]) -> str:
    """The GPU for one more worker, where ``used`` has one entry for each worker that runs."""
    counts = Counter(used)
    return min(gpus, key=lambda gpu: counts[gpu])
