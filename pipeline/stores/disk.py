"""A local disk, as stores use it: its errors become ours here, and half-written files go."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import DiskFull, StoreUnavailable


@contextlib.contextmanager
def translated(path: Path, what: str, room: str) -> Iterator[None]:
    """`what` failed, in words; `room` says how to make some. Raises `DiskFull` or `StoreUnavailable`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room to write {path}: {room}", path=str(path)) from error
        raise StoreUnavailable(
            f"{what} failed at {path}: {error.strerror or error}; check the folder and its disk", path=str(path)
        ) from error


def discard(file: BinaryIO, temporary: Path) -> None:
    """Closing writes what is still buffered: on a full disk it fails again, and must not hide the cause."""
    with contextlib.suppress(OSError):
        file.close()
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
