"""Fuzzing for a set time: rounds go on after a finding, and the time ends them wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase

from harness.case import Case, Linear
from harness.time_box import TimeBox, TimeIsUp, share
from harness.working_corpus import size


class Found(AssertionError):
    """A finding in a bucket."""

    def __init__(self, bucket: str, value: int) -> None:
        super().__init__(f"{bucket} at {value}")
        self.bucket = bucket
        self.value = value
        self.case = Case(layers=(Linear(out_features=64),), seed=abs(value))


class FoundA(Found):
    """Hypothesis tells failures apart by class."""


class FoundB(Found):
    """Another one."""


class Fuzzing:
    """A time box around a test of integers, in which every case takes a second."""

    def __init__(self, seconds: int, find: Callable[[int], Found | None], database: ExampleDatabase | None = None):
        self.now = 0.0
        self.tried: list[int] = []
        self.seeds: list[int] = []
        self.box = TimeBox(seconds, lambda: self.now)
        self.find = find

        @settings(
            max_examples=5,
            database=database,
            deadline=None,
            derandomize=False,
            report_multiple_bugs=True,
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
        )
        @given(value=st.integers(-1000, 1000))
        def test(value: int) -> None:
            self.check(value)

        self.test: Any = test

    def check(self, value: int) -> None:
        """As the fuzz session does it."""
        self.box.check_time()
        self.now += 1
        self.tried.append(value)
        found = self.find(value)
        if found is not None and self.box.is_new(found):  # type: ignore[arg-type]  # a stand-in
            raise found

    def run(self) -> None:
        def seed(number: int) -> int:
            self.seeds.append(number)
            return number

        self.box.run(self.test, self.test, seed)


def two_buckets(value: int) -> Found | None:
    if value > 100:
        return FoundA("a", value)
    return FoundB("b", value) if value < -100 else None


def test_the_time_is_shared_out() -> None:
    assert share(600, tests=16, workers=1) == 37.5
    assert share(600, tests=16, workers=4) == 150
    assert share(600, tests=16, workers=5) == 150, "four rounds of workers"
    assert share(600, tests=3, workers=8) == 600


def test_without_a_finding_the_time_ends_it_and_not_the_number_of_examples() -> None:
    fuzzing = Fuzzing(50, lambda value: None)
    fuzzing.run()
    assert len(fuzzing.tried) == 50
    assert fuzzing.seeds == [0]


def test_it_goes_on_after_a_finding_and_raises_all_of_them_shrunk() -> None:
    fuzzing = Fuzzing(2000, two_buckets)
    with pytest.raises(ExceptionGroup) as caught:
        fuzzing.run()
    assert {error.value for error in caught.value.exceptions if isinstance(error, Found)} == {101, -101}
    assert len(fuzzing.tried) == 2000, "the whole time is used"
    assert fuzzing.seeds == [*range(len(fuzzing.seeds))]
    assert len(fuzzing.seeds) >= 2


def test_a_bucket_is_raised_once() -> None:
    fuzzing = Fuzzing(1000, lambda value: FoundA("a", value) if value > 100 else None)
    with pytest.raises(FoundA) as caught:
        fuzzing.run()
    assert caught.value.value == 101
    assert len(fuzzing.seeds) == 2


def test_time_that_is_up_while_shrinking_leaves_the_smallest_so_far() -> None:
    def slow(value: int) -> Found | None:
        if value > 100:
            fuzzing.now = max(fuzzing.now, 997)
            return FoundA("a", value)
        return None

    fuzzing = Fuzzing(1000, slow)
    with pytest.raises(FoundA) as caught:
        fuzzing.run()
    seen = [FoundA("a", value) for value in fuzzing.tried if value > 100]
    assert len(seen) > 1
    assert caught.value.value == min(seen, key=lambda found: size(found.case)).value
    assert fuzzing.now == 1000


def test_an_error_of_ours_is_not_swallowed() -> None:
    def broken(value: int) -> Found | None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Fuzzing(1000, broken).run()


def test_later_rounds_do_not_make_hypothesis_forget() -> None:
    """A failure that is no news in a later round must still be tried first in the next run."""
    database = InMemoryExampleDatabase()
    find = lambda value: FoundA("a", value) if value > 100 else None  # noqa: E731
    with pytest.raises(FoundA):
        Fuzzing(1000, find, database).run()
    again = Fuzzing(3, find, database)
    with pytest.raises(FoundA):
        again.run()
    assert again.tried[0] == 101


def test_no_handler_of_exceptions_may_catch_the_end() -> None:
    assert not issubclass(TimeIsUp, Exception)
