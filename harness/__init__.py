"""Run one ``Case`` under eager Transformer Engine and under the Thunder JIT, and judge the difference.

Importing this package imports neither torch, nor thunder, nor transformer_engine: ``harness.device`` does that,
once, after it has decided whether the real compiled extension or its CPU emulation is used.
"""
