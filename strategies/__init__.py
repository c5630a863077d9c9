"""What to try: Hypothesis strategies that draw cases.

Each module holds one dimension of the space. Strategies import Hypothesis and ``harness.case`` only, never torch.
They construct valid cases and filter nothing; the plainest choice comes first, so that shrinking ends there.
"""

from strategies.cases import cases, fused_module_cases, fuser_cases

__all__ = ["cases", "fused_module_cases", "fuser_cases"]
