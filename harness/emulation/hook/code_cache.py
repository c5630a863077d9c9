"""Keeps compiled rewritten modules between processes: rewriting Transformer Engine takes about a second, loading 0.1 s.

A marshalled code object is code. The cache therefore lives in a directory that only the user can write, an entry is
found by a hash of everything that went into it, and one that is truncated or of another owner is ignored.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

_DIGEST_SIZE = hashlib.sha256().digest_size


def cached_code(source: bytes, filename: str, rewriter_id: bytes, make: Callable[[], CodeType]) -> CodeType:
    """The compiled form of ``source``, from the cache or from ``make()``, which is then remembered if possible."""
    directory = _directory()
    if directory is None:
        return make()
    entry = directory / _key(source, filename, rewriter_id)
    code = _load(entry)
    if code is None:
        code = make()
        _store(entry, code)
    return code


def _key(source: bytes, filename: str, rewriter_id: bytes) -> str:
    digest = hashlib.sha256()
    flags = repr((sys.flags.optimize, sys.implementation.cache_tag)).encode()
    for part in (MAGIC_NUMBER, flags, rewriter_id, filename.encode(), source):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@cache
def _directory() -> Path | None:
    """A private directory for the cache, or None when there is no place that is safe and writable."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        directory = (Path(base) if base else Path.home() / ".cache") / "tefuzz" / "rewritten-modules"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory if _is_private(directory) else None
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None


def _is_private(path: Path) -> bool:
    if not hasattr(os, "getuid"):
        return False
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _load(entry: Path) -> CodeType | None:
    try:
        if not _is_private(entry):
            return None
        content = entry.read_bytes()
    except OSError:
        return None
    digest, payload = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    if hashlib.sha256(payload).digest() != digest:
        return None
    code = marshal.loads(payload)
    return code if isinstance(code, CodeType) else None


def _store(entry: Path, code: CodeType) -> None:
    payload = marshal.dumps(code)
    try:
        handle, temporary = tempfile.mkstemp(dir=entry.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(payload).digest() + payload)
        os.replace(temporary, entry)  # atomic: other processes see the whole entry or none
    except OSError:
        return
