"""The file to read, opened by the parent: what the child is given, and how it tells one file from another."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import SourceMissing, StoreUnavailable


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    fd: int
    name: str
    size: int
    identity: dict[str, int]
    """Differs from that of any other file, and from that of this one after it was written to."""


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Raises `SourceMissing` where there is no file at `path`, `StoreUnavailable` where it cannot be opened."""
    fd = _open(path)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SourceMissing(f"{str(path)!r} is no file")
        size = status.st_size
        identity = {"device": status.st_dev, "inode": status.st_ino, "changed": status.st_mtime_ns, "size": size}
        yield Source(fd=fd, name=path.name, size=size, identity=identity)
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # non-blocking: it may be a named pipe
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceMissing(f"there is no file at {str(path)!r}") from error
    except OSError as error:
        raise StoreUnavailable(f"{str(path)!r} cannot be opened: {error.strerror}") from error
