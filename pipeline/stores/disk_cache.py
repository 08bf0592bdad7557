"""Copies of remote objects on a node's disk, shared by all its processes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from pipeline.domain import ArtifactRef
from pipeline.stores.disk import discard, translated

LOCKS = ".locks"
"""Folder of lock files: one for making room, and one for each first two digits of a copy's name. They are never
removed, since that could not be done safely; a dead holder's lock is gone with it."""

IDLE_S = 24 * 3600.0
"""A copy not used for this long goes even where there is room, so that what was deleted does not stay on nodes."""

Download = Callable[[ArtifactRef], Generator[bytes, None, None]]
"""Opens an object and returns its bytes, chunk after chunk; raises at the end if their digest is not the ref's."""


class DiskCache:
    """Files named by their object's key, verified, the least recently used removed beyond `limit` bytes.

    A copy is downloaded under a name of its own and renamed when it was verified, by one process while others
    that want it wait. The copy that a `DiskCache` returned last is pinned (a shared lock on the open file, which
    ends with the process at the latest): no process removes it until this one asks for another. A reader that
    has any other copy open reads on after its removal: Linux keeps an unlinked file until it is closed. Nothing
    is synced: a copy that a power loss damaged fails its digest, and is downloaded again.

    Time of use is the file's access time, set on every use whatever the mount options. The folder must be on a
    local disk. Raises `DiskFull` or `StoreUnavailable` when the disk fails.
    """

    def __init__(self, root: Path, limit: int) -> None:
        self._root = root.absolute()
        self._limit = limit
        self._pinned: BinaryIO | None = None
        self._verified: dict[str, tuple[str, int, int, int]] = {}
        with _translated(self._root):
            (self._root / LOCKS).mkdir(parents=True, exist_ok=True)
            with self._locked("room"):
                self._make_room(0)

    def fetch(self, ref: ArtifactRef, download: Download) -> Path:
        """A verified copy, pinned until the next call. `download` is called only where there is none."""
        path = self._path(ref.key)
        with _translated(path):
            found = self._reuse(path, ref)
        if not found:
            with self._locked(path.name[:2]):
                self._fill(path, ref, download)
        return path

    def discard(self, key: str) -> None:
        """Remove the copy of `key` from this node; no error if there is none."""
        path = self._path(key)
        with _translated(path):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unpin."""
        self._pin(None)

    def _path(self, key: str) -> Path:
        return self._root / hashlib.sha256(key.encode()).hexdigest()

    def _fill(self, path: Path, ref: ArtifactRef, download: Download) -> None:
        with _translated(path):
            if self._reuse(path, ref):  # another process was faster
                return
        with contextlib.closing(download(ref)) as chunks:
            self._write(path, ref, chunks)

    def _reuse(self, path: Path, ref: ArtifactRef) -> bool:
        """Pin the copy if it is there and intact."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
        fcntl.flock(file, fcntl.LOCK_SH)
        status = os.fstat(file.fileno())
        if not status.st_nlink or not self._is_intact(file, ref, status):  # no link: removed before it was locked
            file.close()
            return False
        os.utime(file.fileno(), ns=(time.time_ns(), status.st_mtime_ns))
        self._pin(file)
        return True

    def _is_intact(self, file: BufferedReader, ref: ArtifactRef, status: os.stat_result) -> bool:
        """The digest is computed once a process, and again if the file changes."""
        if self._verified.get(ref.key) == _identity(ref, status):
            return True
        if status.st_size != ref.size or hashlib.file_digest(file, "sha256").hexdigest() != ref.sha256:
            return False
        self._verified[ref.key] = _identity(ref, status)
        return True

    def _write(self, path: Path, ref: ArtifactRef, chunks: Iterator[bytes]) -> None:
        self._pin(None)  # we are done with the copy before, it may make room
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        with _translated(path):
            file = self._begin(temporary, ref.size)
        try:
            for chunk in chunks:
                with _translated(path):
                    file.write(chunk)
            with _translated(path):
                file.flush()
                temporary.replace(path)
                self._verified[ref.key] = _identity(ref, os.fstat(file.fileno()))
        except BaseException:
            discard(file, temporary)
            raise
        self._pin(file)

    def _begin(self, temporary: Path, size: int) -> BinaryIO:
        """A locked file that counts with its whole size from its first byte on."""
        with self._locked("room"):
            self._make_room(size)
            file = temporary.open("xb")
            fcntl.flock(file, fcntl.LOCK_SH)
            file.truncate(size)
        return file

    def _make_room(self, needed: int) -> None:
        """Remove what is idle, and the least recently used until `needed` bytes fit; what is locked stays."""
        copies = sorted(_copies(self._root))
        excess = sum(size for _, size, _ in copies) + needed - self._limit
        idle = time.time() - IDLE_S
        for used, size, path in copies:
            if (excess > 0 or used < idle) and _evict(path):
                excess -= size

    def _pin(self, file: BinaryIO | None) -> None:
        if self._pinned:
            self._pinned.close()
        self._pinned = file

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """One process (or thread) at a time."""
        path = self._root / LOCKS / name
        with _translated(path):
            file = path.open("ab")
        with file:
            with _translated(path):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _identity(ref: ArtifactRef, status: os.stat_result) -> tuple[str, int, int, int]:
    return ref.sha256, status.st_ino, status.st_mtime_ns, status.st_size


def _copies(root: Path) -> Iterator[tuple[float, int, Path]]:
    """Time of use, size and path of each copy and of each download under way or left by a dead process."""
    with os.scandir(root) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file():
                    status = entry.stat()
                    yield status.st_atime, status.st_size, Path(entry.path)


def _evict(path: Path) -> bool:
    """Remove a copy unless a living process has it locked."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        path.unlink()
    return True


def _translated(path: Path) -> contextlib.AbstractContextManager[None]:
    return translated(path, "the cache of sources", "free some space or lower cache_bytes")
