"""Importing this module installs the CPU emulation: ``import harness.emulation.activate`` before Transformer Engine.

``TEFUZZ_COMPUTE_CAPABILITY`` (for example ``10.0``) chooses the capability that Transformer Engine sees.
"""

from __future__ import annotations

import os

from harness.emulation import EmulationError, install

_VARIABLE = "TEFUZZ_COMPUTE_CAPABILITY"


def _requested_capability() -> tuple[int, int]:
    text = os.environ.get(_VARIABLE, "9.0")
    major, _, minor = text.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise EmulationError(f"{_VARIABLE}={text!r} is not of the form MAJOR.MINOR, for example 9.0")
    return int(major), int(minor)


install(_requested_capability())
