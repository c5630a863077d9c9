"""The import hook: chosen modules are compiled from a rewritten syntax tree in which "cuda" means the CPU."""

from harness.emulation.hook.finder import install

__all__ = ["install"]
