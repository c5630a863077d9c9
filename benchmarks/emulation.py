"""How long emulated layers take beside plain fp32 torch on the same CPU.

    python benchmarks/emulation.py [--capability 10.0] [--repeat 40]

Forward and backward, one thread, the best of several rounds (what a busy machine disturbs least).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch

from harness import emulation

SIZES = (64, 256, 512, 1024)
LIMIT = 3.0
"""te.Linear under delayed scaling may cost at most this multiple of torch.nn.Linear at 256 x 256 and above."""

Step = Callable[[], None]


def main() -> int:
    """Print the table; exit status 1 when the limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", default="9.0")
    parser.add_argument("--repeat", type=int, default=40)
    options = parser.parse_args()
    major, minor = options.capability.split(".")
    emulation.install((int(major), int(minor)))
    torch.set_num_threads(1)
    exceeded = False
    write(f"{'te.Linear, rows = width':24s}{'torch ms':>10s}" + "".join(f"{name:>24s}" for name in recipes()))
    for size in SIZES:
        steps = {"torch": plain_step(size), **{name: te_step(size, name) for name in recipes()}}
        best = measure(steps, options.repeat)
        base = best.pop("torch")
        cells = "".join(f"{1e3 * value:14.2f} ms {value / base:5.1f}x" for value in best.values())
        write(f"{size:<24d}{1e3 * base:10.2f}{cells}")
        exceeded |= size >= 256 and best["DelayedScaling"] > LIMIT * base
    return int(exceeded)


def recipes() -> tuple[str, ...]:
    """The recipes of the chosen capability; "none" is te.Linear without FP8."""
    names = ("none", "DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling")
    return (*names, "MXFP8BlockScaling", "NVFP4BlockScaling") if emulation_has_block_formats() else names


def emulation_has_block_formats() -> bool:
    """Capability 10 and later."""
    from harness.emulation import settings

    return settings.current().compute_capability >= (10, 0)


def plain_step(size: int) -> Step:
    """Forward and backward of torch.nn.Linear in fp32."""
    layer = torch.nn.Linear(size, size)
    return step(layer, size, torch.float32)


def te_step(size: int, recipe_name: str) -> Step:
    """Forward and backward of te.Linear under a recipe."""
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe

    chosen = None if recipe_name == "none" else getattr(recipe, recipe_name)()
    # The Hadamard transform of the NVFP4 recipe takes bf16 only.
    dtype = torch.bfloat16 if recipe_name == "NVFP4BlockScaling" else torch.float32
    layer = te.Linear(size, size, params_dtype=dtype)

    def forward(x: torch.Tensor) -> torch.Tensor:
        with te.autocast(enabled=chosen is not None, recipe=chosen):
            return layer(x)

    return step(forward, size, dtype)


def step(forward: Callable[[torch.Tensor], torch.Tensor], size: int, dtype: torch.dtype) -> Step:
    """A closure that runs forward and backward once."""
    x = torch.randn(size, size, dtype=dtype, requires_grad=True)
    grad = torch.randn(size, size, dtype=dtype)

    def run() -> None:
        forward(x).backward(grad)

    return run


def measure(steps: dict[str, Step], repeat: int) -> dict[str, float]:
    """Best CPU seconds of each step, in interleaved rounds: other processes disturb that least."""
    for run in steps.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeat):
        for name, run in steps.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return {name: min(values) for name, values in times.items()}


def write(line: str) -> None:
    """One line of output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
