"""Hypothesis profiles of the fuzz suite.

With ``CI`` set Hypothesis would derandomise and drop its database, so every profile states both.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import ExampleDatabase

ALL_PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)


@dataclass(frozen=True, slots=True)
class Profile:
    """How long a run takes and whether it repeats itself."""

    name: str
    examples_per_shard: int
    """Each test is split into a fixed number of shards (``fuzz/``)."""
    fixed_seed: int | None
    """Seed when the user gives none; None draws a fresh one for every run."""
    phases: tuple[Phase, ...] = ALL_PHASES
    keeps_examples: bool = True
    """Whether failures are kept in Hypothesis' database and tried first in the next run. Then equal seeds no longer
    mean equal cases, so profiles with a fixed seed do without."""


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("dev", examples_per_shard=13, fixed_seed=None),
        Profile("ci-short", examples_per_shard=4, fixed_seed=0, keeps_examples=False),
        Profile("ci", examples_per_shard=64, fixed_seed=0, keeps_examples=False),
        Profile("nightly", examples_per_shard=2000, fixed_seed=None),
        Profile("replay", examples_per_shard=1, fixed_seed=0, phases=(Phase.explicit, Phase.reuse)),
    )
}


def load(profile: Profile, database: ExampleDatabase | None) -> None:
    """Register ``profile`` with Hypothesis and make it the default of tests that are imported after this.

    ``database`` is where Hypothesis keeps failing examples, if it is to keep any.
    """
    settings.register_profile(
        profile.name,
        max_examples=profile.examples_per_shard,
        phases=profile.phases,
        # The first case of a process pays for imports and every case for a compilation: no time limit per example
        # means anything. The limit of ``harness.isolation`` catches hangs.
        deadline=None,
        derandomize=False,
        database=database,
        # A blob is bound to one version of Hypothesis and of the strategies; cases are kept as JSON instead.
        print_blob=False,
        report_multiple_bugs=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.load_profile(profile.name)
