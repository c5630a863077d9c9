"""Where Hypothesis keeps failing examples: a directory, and a Redis server if several machines are to share them.

Hypothesis has both databases; what is here makes an outage of the server cost no run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, MultiplexedDatabase

CONNECT_SECONDS = 5.0
KEY_PREFIX = b"tefuzz:"

T = TypeVar("T")


class DatabaseError(RuntimeError):
    """The server cannot be used; the message says why and what to do."""


def example_database(directory: Path, url: str | None) -> ExampleDatabase:
    """The examples in ``directory``, and those of the Redis server at ``url`` if one is given."""
    local = DirectoryBasedExampleDatabase(directory)
    return local if url is None else MultiplexedDatabase(local, Shared(_server(url)))


def _server(url: str) -> ExampleDatabase:
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
        from redis.exceptions import RedisError
    except ImportError as error:
        raise DatabaseError(f"{error.name} is not installed. Run `pip install -e '.[fleet]'`.") from error
    try:
        client = Redis.from_url(url, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=CONNECT_SECONDS)
        client.ping()
    except (RedisError, ValueError, OSError) as error:
        raise DatabaseError(f"{url} does not answer ({error}). Check the address, or leave the option out.") from error
    return RedisExampleDatabase(client, key_prefix=KEY_PREFIX)


class Shared(ExampleDatabase):
    """A database that is somewhere else: while it cannot be reached, nothing is shared, and the run goes on."""

    def __init__(self, inner: ExampleDatabase) -> None:
        super().__init__()
        self._inner = inner

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """What other machines and earlier runs have left for a test."""
        return self._unless_gone(lambda: list(self._inner.fetch(key)), [])

    def save(self, key: bytes, value: bytes) -> None:
        """Leave an example."""
        self._unless_gone(lambda: self._inner.save(key, value), None)

    def delete(self, key: bytes, value: bytes) -> None:
        """Take an example away that no longer fails."""
        self._unless_gone(lambda: self._inner.delete(key, value), None)

    def _unless_gone(self, use: Callable[[], T], otherwise: T) -> T:
        from redis.exceptions import RedisError

        try:
            return use()
        except (RedisError, OSError) as error:
            with warnings.catch_warnings():
                # A warning, in tests of ours too: it must not end what fuzzes.
                warnings.simplefilter("always")
                warnings.warn(f"the Redis server does not answer, examples are not shared: {error}", stacklevel=2)
            return otherwise
