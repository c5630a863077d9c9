"""The exception of the emulation's own misuse."""


class EmulationError(RuntimeError):
    """The emulation cannot be installed the way it was asked to; the message says what to do instead."""
