"""The object store of the embedded set-up: a folder in which an object's key is its relative path."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pipeline.domain import ArtifactRef
from pipeline.errors import ArtifactLost, SourceChanged
from pipeline.failpoints import reached
from pipeline.stores.disk import discard, translated
from pipeline.stores.keys import KEY, check_key

TEMPORARY = ".tmp"
"""Folder under the root for what is being written: in the same file system, so that a rename is atomic. No key
begins with a dot."""

STALE_S = 24 * 3600.0
"""A temporary file older than this was left by a process that died: nothing takes a day to write."""

CHUNK = 1 << 20
"""Bytes copied at a time, so that a large object needs no more memory than a small one."""


class FolderStore:
    """`ObjectStore` in a folder, for any number of processes at once.

    An object is written to a temporary file, which is synced and renamed to its key, and the key's folder is
    synced. So a reader sees a whole object or none, and what `put` returned is there after a power loss. That
    costs 1.2–1.6 ms a page of 200 KB against 0.1–0.9 unsynced (2,000 puts, ext4 on a virtual disk), beside
    the 16 ms or more that drawing and packing such a page take. Where a file system has no single journal,
    the names of folders made just before a power loss may be missing; that, like any damage that comes later,
    shows as `ArtifactLost`, because digests are checked on reading.

    Raises `StoreUnavailable` when the file system fails, `DiskFull` when it has no room, `BadKey` for an odd
    key.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._temporary = self._root / TEMPORARY
        self._verified: dict[str, tuple[str, int, int]] = {}
        with _translated(self._root):
            self._temporary.mkdir(parents=True, exist_ok=True)
            self._remove_stale()

    def put(self, key: str, content: bytes) -> ArtifactRef:
        """Store `content`. An equal object is only made young again; a damaged one (cut or changed) is replaced."""
        path = self._path(key)
        ref = ArtifactRef(key=key, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        if not _is_intact(path, ref) or not _touched(path):
            with self._writing(path) as file, _translated(path):
                file.write(content)
        return ref

    def put_stream(self, key: str, stream: BinaryIO, sha256: str) -> ArtifactRef:
        """Store a stream of known digest in constant memory. What reading it raises goes to the caller."""
        path = self._path(key)
        with self._writing(path) as file:
            found, size = _copy(stream, file, path)
            if found != sha256:
                raise SourceChanged(
                    f"the bytes for {key} have sha256 {found}, not {sha256}: "
                    "they changed while they were read, submit the source again",
                    key=key,
                )
        return ArtifactRef(key=key, sha256=sha256, size=size)

    def get(self, ref: ArtifactRef) -> bytes:
        path = self._path(ref.key)
        with _present(path, ref.key):
            content = path.read_bytes()
        _compare(hashlib.sha256(content).hexdigest(), ref)
        return content

    def fetch(self, ref: ArtifactRef) -> Path:
        """The object's own path. Its digest is computed once a process, and again if the file changes."""
        path = self._path(ref.key)
        with _present(path, ref.key):
            status = path.stat()
            seen = (ref.sha256, status.st_mtime_ns, status.st_size)
            if self._verified.get(ref.key) != seen:
                _compare(_digest(path), ref)
                self._verified[ref.key] = seen
        return path

    def holds(self, ref: ArtifactRef) -> bool:
        """Reads the object unless this process has verified it before."""
        try:
            self.fetch(ref)
        except ArtifactLost:
            return False
        return True

    def keys(self, prefix: str = "", older_than_s: float = 0.0) -> Iterator[str]:
        """Only the part of the tree that can hold `prefix` is walked."""
        before = time.time() - older_than_s
        folder = prefix.rpartition("/")[0]
        start = self._path(folder) if folder else self._root
        for path in _files(start):
            key = path.relative_to(self._root).as_posix()
            if key.startswith(prefix) and KEY.fullmatch(key) and (not older_than_s or _put_before(path, before)):
                yield key

    def delete(self, key: str) -> None:
        """Remove an object. Its folders stay: another process may be about to write into them."""
        path = self._path(key)
        with _translated(path):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held."""

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[BinaryIO]:
        """A temporary file that becomes `path` if the block ends well, and is gone if it does not."""
        temporary = self._temporary / uuid.uuid4().hex
        with _translated(path):
            file = temporary.open("xb")
        try:
            yield file
            with _translated(path):
                _finish(file)
                reached("folder.written")
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary.replace(path)
                reached("folder.renamed")
                _sync_folder(path.parent)
        finally:
            discard(file, temporary)

    def _remove_stale(self) -> None:
        for path in self._temporary.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()


def _translated(path: Path) -> contextlib.AbstractContextManager[None]:
    return translated(path, "the object store", "free some space")


@contextlib.contextmanager
def _present(path: Path, key: str) -> Iterator[None]:
    """For reading: an absent file is a lost artifact, any other failure is the store's."""
    with _translated(path):
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise ArtifactLost(f"{key} is not in the store: its stage has to run again", key=key) from error


def _compare(found: str, ref: ArtifactRef) -> None:
    if found != ref.sha256:
        raise ArtifactLost(
            f"{ref.key} is damaged, its sha256 is {found}, not {ref.sha256}: its stage has to run again",
            key=ref.key,
        )


def _is_intact(path: Path, ref: ArtifactRef) -> bool:
    """By its bytes too: an artifact that was found damaged is put again to heal it, with the same size."""
    with _translated(path):
        try:
            return path.stat().st_size == ref.size and _digest(path) == ref.sha256
        except FileNotFoundError:
            return False


def _touched(path: Path) -> bool:
    """Whether it was still there: what is put again is as young as what is new, so that nobody sweeps it now."""
    with _translated(path):
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
    return True


def _put_before(path: Path, before: float) -> bool:
    with _translated(path):
        try:
            return path.stat().st_mtime < before
        except FileNotFoundError:
            return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(stream: BinaryIO, file: BinaryIO, path: Path) -> tuple[str, int]:
    """Digest and size of what was copied. Only errors of writing are the store's."""
    hasher, size = hashlib.sha256(), 0
    while chunk := stream.read(CHUNK):
        hasher.update(chunk)
        size += len(chunk)
        with _translated(path):
            file.write(chunk)
    return hasher.hexdigest(), size


def _files(folder: Path) -> Iterator[Path]:
    """Files under `folder`, in no order. What vanishes meanwhile is left out."""
    for parent, folders, names in os.walk(folder):
        if TEMPORARY in folders:
            folders.remove(TEMPORARY)
        for name in names:
            yield Path(parent, name)


def _finish(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
