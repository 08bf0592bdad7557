"""The contract of `ObjectStore`. A later implementation is one more parameter of `store`."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from pipeline.domain import ArtifactRef
from pipeline.errors import ArtifactLost, DiskFull, SourceChanged, StoreUnavailable
from pipeline.protocols import ObjectStore
from pipeline.stores.folder import TEMPORARY, FolderStore
from pipeline.stores.s3 import S3Store
from tests.s3_server import Bucket, fresh_bucket, service_bucket

KEY = "document/version/00000/image/abc.jpg"
FORK = multiprocessing.get_context("fork")


@pytest.fixture(params=["folder", "s3", pytest.param("s3_service", id="s3 service")])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """One store of each kind."""
    made: ObjectStore = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "objects")


@pytest.fixture
def bucket() -> Bucket:
    return fresh_bucket()


@pytest.fixture
def s3(bucket: Bucket, tmp_path: Path) -> Iterator[S3Store]:
    store = S3Store(bucket.options, tmp_path / "cache")
    yield store
    store.close()


@pytest.fixture
def s3_service(tmp_path: Path) -> Iterator[S3Store]:
    """On a server that is another process."""
    store = S3Store(service_bucket(), tmp_path / "cache")
    yield store
    store.close()


def test_the_store_knows_whether_it_holds_an_object_itself(store: ObjectStore) -> None:
    ref = store.put_stream(KEY, io.BytesIO(b"pixels"), hashlib.sha256(b"pixels").hexdigest())
    store.fetch(ref)  # a local copy says nothing about the store

    assert store.holds(ref)
    assert not store.holds(dataclasses.replace(ref, size=5, sha256="0" * 64))
    store.delete(KEY)
    assert not store.holds(ref)


def test_what_was_put_is_read_back(store: ObjectStore) -> None:
    ref = store.put(KEY, b"pixels")

    assert ref == ArtifactRef(key=KEY, sha256=hashlib.sha256(b"pixels").hexdigest(), size=6)
    assert store.get(ref) == b"pixels"
    assert store.fetch(ref).read_bytes() == b"pixels"


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    assert store.get(store.put(KEY, b"")) == b""


def test_putting_again_changes_nothing(store: ObjectStore) -> None:
    first = store.put(KEY, b"pixels")
    before = store.fetch(first).stat()

    assert store.put(KEY, b"pixels") == first
    assert store.fetch(first).stat().st_ino == before.st_ino


def test_a_stream_is_stored_whole(store: ObjectStore) -> None:
    content = os.urandom(3_000_000)
    sha256 = hashlib.sha256(content).hexdigest()

    ref = store.put_stream(KEY, io.BytesIO(content), sha256)

    assert ref == ArtifactRef(key=KEY, sha256=sha256, size=len(content))
    assert store.get(ref) == content


def test_a_stream_of_another_digest_is_refused_and_leaves_nothing(store: ObjectStore) -> None:
    with pytest.raises(SourceChanged):
        store.put_stream(KEY, io.BytesIO(b"changed"), hashlib.sha256(b"announced").hexdigest())

    assert list(store.keys()) == []


def test_a_refused_stream_leaves_the_object_that_was_there(store: ObjectStore) -> None:
    ref = store.put(KEY, b"pixels")

    with pytest.raises(SourceChanged):
        store.put_stream(KEY, io.BytesIO(b"changed"), ref.sha256)

    assert store.get(ref) == b"pixels"


class _Breaking(io.RawIOBase):
    """A source that fails after its first bytes."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, size: int = -1) -> bytes:
        self.reads += 1
        if self.reads > 1:
            raise ConnectionResetError("the source went away")
        return b"begun"


def test_a_stream_that_breaks_off_raises_its_own_error_and_leaves_nothing(store: ObjectStore) -> None:
    breaking: BinaryIO = _Breaking()  # type: ignore[assignment]

    with pytest.raises(ConnectionResetError):
        store.put_stream(KEY, breaking, "0" * 64)

    assert list(store.keys()) == []


def test_an_absent_object_is_lost(store: ObjectStore) -> None:
    ref = ArtifactRef(key=KEY, sha256="0" * 64, size=1)

    for read in (store.get, store.fetch):
        with pytest.raises(ArtifactLost) as caught:
            read(ref)
        assert caught.value.context["key"] == KEY


def test_an_object_under_another_digest_is_lost(store: ObjectStore) -> None:
    ref = store.put(KEY, b"pixels")
    store.fetch(ref)
    other = ArtifactRef(key=KEY, sha256="0" * 64, size=6)

    for read in (store.get, store.fetch):
        with pytest.raises(ArtifactLost):
            read(other)


def test_deleting_is_final_and_may_be_repeated(store: ObjectStore) -> None:
    ref = store.put(KEY, b"pixels")
    store.fetch(ref)

    store.delete(KEY)
    store.delete(KEY)

    assert list(store.keys()) == []
    for read in (store.get, store.fetch):
        with pytest.raises(ArtifactLost):
            read(ref)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", {"a/1/x", "a/10/x", "a/2/x", "ab/1/x"}),
        ("a/", {"a/1/x", "a/10/x", "a/2/x"}),
        ("a/1", {"a/1/x", "a/10/x"}),
        ("a/1/", {"a/1/x"}),
        ("a/1/x", {"a/1/x"}),
        ("a/3", set()),
        ("none/at/all", set()),
    ],
)
def test_keys_are_those_that_begin_with_the_prefix(store: ObjectStore, prefix: str, expected: set[str]) -> None:
    for key in ("a/1/x", "a/10/x", "a/2/x", "ab/1/x"):
        store.put(key, b"x")

    assert set(store.keys(prefix)) == expected


ODD = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../outside",
    "a/../../outside",
    "a/./b",
    "a//b",
    "a/",
    ".tmp/a",
    ".hidden",
    "a b",
    "a\n",
    "a\\b",
    "a\0b",
    "é",
    "a/*",
]


def test_what_was_put_lately_is_young_also_if_it_was_there(store: ObjectStore) -> None:
    store.put(KEY, b"pixels")
    time.sleep(2.1)  # S3's times have whole seconds
    assert list(store.keys(older_than_s=1.0)) == [KEY]
    assert list(store.keys(older_than_s=3600.0)) == []
    store.put(KEY, b"pixels")
    assert list(store.keys(older_than_s=1.0)) == []


@pytest.mark.parametrize("key", ODD)
def test_an_odd_key_is_refused_everywhere(store: ObjectStore, key: str) -> None:
    ref = ArtifactRef(key=key, sha256="0" * 64, size=1)
    for call in (
        lambda: store.put(key, b"x"),
        lambda: store.put_stream(key, io.BytesIO(b"x"), "0" * 64),
        lambda: store.get(ref),
        lambda: store.fetch(ref),
        lambda: store.delete(key),
    ):
        with pytest.raises(ValueError, match="key"):
            call()


def test_a_truncated_object_is_lost_until_it_is_put_again(folder: FolderStore) -> None:
    ref = folder.put(KEY, b"pixels")
    path = folder.fetch(ref)
    path.write_bytes(b"pix")

    for read in (folder.get, folder.fetch):
        with pytest.raises(ArtifactLost):
            read(ref)
    folder.put(KEY, b"pixels")

    assert folder.get(ref) == b"pixels"
    assert folder.fetch(ref).read_bytes() == b"pixels"


def test_a_flipped_byte_is_lost_until_it_is_put_again(folder: FolderStore) -> None:
    ref = folder.put(KEY, b"pixels")
    path = folder.fetch(ref)
    _overwrite(path, b"pixelz")

    for read in (folder.get, folder.fetch):
        with pytest.raises(ArtifactLost):
            read(ref)
    folder.put(KEY, b"pixels")

    assert folder.get(ref) == b"pixels"


@pytest.mark.parametrize("damage", [b"", b"pix", b"pixelz", b"pixels and more"])
@pytest.mark.parametrize("metadata", ["kept", "lost"])
def test_a_damaged_object_in_a_bucket_is_lost_until_it_is_put_again(
    s3: S3Store, bucket: Bucket, damage: bytes, metadata: str
) -> None:
    ref = s3.put(KEY, b"pixels")
    kept = bucket.raw.head_object(Bucket=bucket.name, Key=KEY)["Metadata"] if metadata == "kept" else {}
    bucket.raw.put_object(Bucket=bucket.name, Key=KEY, Body=damage, Metadata=kept)

    for read in (s3.get, s3.fetch):
        with pytest.raises(ArtifactLost):
            read(ref)
    s3.put(KEY, b"pixels")

    assert s3.get(ref) == b"pixels"
    assert s3.fetch(ref).read_bytes() == b"pixels"


def _overwrite(path: Path, content: bytes) -> None:
    """Change a file so that its time shows it, however coarse the clock of the file system is."""
    path.write_bytes(content)
    later = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))


def test_a_verified_file_is_not_read_again(folder: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = folder.put(KEY, b"pixels")
    path = folder.fetch(ref)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("it was read again"))

    assert folder.fetch(ref) == path


def test_nothing_temporary_is_left_over(folder: FolderStore, tmp_path: Path) -> None:
    folder.put(KEY, b"pixels")
    with pytest.raises(SourceChanged):
        folder.put_stream(KEY, io.BytesIO(b"changed"), "0" * 64)
    with pytest.raises(ConnectionResetError):
        folder.put_stream(KEY, _Breaking(), "0" * 64)  # type: ignore[arg-type]

    assert list((tmp_path / "objects" / TEMPORARY).iterdir()) == []


def test_what_a_dead_process_left_is_harmless_and_swept_after_a_day(tmp_path: Path) -> None:
    FolderStore(tmp_path).put(KEY, b"pixels")
    fresh, stale = tmp_path / TEMPORARY / "fresh", tmp_path / TEMPORARY / "stale"
    fresh.write_bytes(b"half")
    stale.write_bytes(b"half")
    os.utime(stale, (time.time() - 90_000, time.time() - 90_000))

    assert list(FolderStore(tmp_path).keys()) == [KEY]
    assert fresh.exists()
    assert not stale.exists()


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreUnavailable)],
)
def test_a_failing_disk_is_told_apart_and_leaves_nothing(
    folder: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(expected, match=KEY):
        folder.put(KEY, b"pixels")
    assert list(folder.keys()) == []
    assert list((tmp_path / "objects" / TEMPORARY).iterdir()) == []


def test_a_write_that_breaks_off_is_the_stores_failure_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files fails the write itself, and the close after it."""
    writer = FORK.Process(target=_put_beyond_the_limit, args=(tmp_path,))
    writer.start()
    writer.join()

    assert writer.exitcode == 0
    assert list((tmp_path / TEMPORARY).iterdir()) == []


def _put_beyond_the_limit(root: Path) -> None:
    store = FolderStore(root)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
    for size in (1_001, 3_000_000):
        with pytest.raises(StoreUnavailable):
            store.put(KEY, bytes(size))
        with pytest.raises(StoreUnavailable):
            store.put_stream(KEY, io.BytesIO(bytes(size)), hashlib.sha256(bytes(size)).hexdigest())
    assert list(store.keys()) == []


def test_processes_may_put_the_same_key_at_once(folder: FolderStore, tmp_path: Path) -> None:
    content = os.urandom(2_000_000)
    writers = [FORK.Process(target=_put_often, args=(tmp_path / "objects", content)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [writer.exitcode for writer in writers] == [0] * 4
    assert folder.get(folder.put(KEY, content)) == content
    assert list((tmp_path / "objects" / TEMPORARY).iterdir()) == []


def _put_often(root: Path, content: bytes) -> None:
    store = FolderStore(root)
    for number in range(10):
        store.put(KEY, content)
        store.put(f"{KEY}{number}", content)


def test_a_reader_sees_a_whole_object_or_none(folder: FolderStore, tmp_path: Path) -> None:
    content = os.urandom(30_000_000)
    ref = ArtifactRef(key=KEY, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    writer = FORK.Process(target=_put_stream, args=(tmp_path / "objects", content, ref.sha256))
    path = tmp_path / "objects" / KEY
    sizes: set[int] = set()
    writer.start()
    while writer.is_alive():
        sizes.add(path.stat().st_size if path.exists() else 0)

    assert writer.exitcode == 0
    assert sizes <= {0, len(content)}
    assert folder.get(ref) == content


def _put_stream(root: Path, content: bytes, sha256: str) -> None:
    FolderStore(root).put_stream(KEY, io.BytesIO(content), sha256)
