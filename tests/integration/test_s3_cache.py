"""Copies of a bucket's objects on a node's disk: verified, shared, bounded, and never taken from who works on one."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from pipeline.domain import ArtifactRef
from pipeline.errors import ArtifactLost, DiskFull
from pipeline.stores.disk_cache import DiskCache
from pipeline.stores.s3 import S3Store
from pipeline.stores.s3_options import S3Options
from tests.s3_server import Bucket, fresh_bucket

KEY = "document/version/source/abc.pdf"
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def bucket() -> Bucket:
    return fresh_bucket()


@pytest.fixture
def store(bucket: Bucket, tmp_path: Path) -> Iterator[S3Store]:
    made = S3Store(bucket.options, tmp_path / "cache")
    yield made
    made.close()


def test_a_second_fetch_asks_nothing_nor_does_another_store_on_the_node(
    store: S3Store, bucket: Bucket, tmp_path: Path
) -> None:
    ref = store.put(KEY, os.urandom(3_000_000))

    paths = {store.fetch(ref), store.fetch(ref), S3Store(bucket.options, tmp_path / "cache").fetch(ref)}

    assert len(paths) == 1
    assert bucket.server.seen("GET", KEY) == 1


@pytest.mark.parametrize("damage", [b"", b"pix", b"pixelz"])
def test_a_damaged_copy_is_fetched_again(store: S3Store, bucket: Bucket, damage: bytes) -> None:
    ref = store.put(KEY, b"pixels")
    path = store.fetch(ref)
    path.write_bytes(damage)
    later = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))

    assert store.fetch(ref).read_bytes() == b"pixels"
    assert bucket.server.seen("GET", KEY) == 2


def copies(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_file()]


def test_the_limit_holds_and_the_least_recently_used_goes_first(bucket: Bucket, tmp_path: Path) -> None:
    store = S3Store(bucket.options.model_copy(update={"cache_bytes": 250}), tmp_path)
    a, b, c = (store.put(name, name.encode() * 100) for name in "abc")

    for ref in (a, b, a, c):
        store.fetch(ref)
        assert sum(path.stat().st_size for path in copies(tmp_path)) <= 250
    for ref in (a, b):
        store.fetch(ref)

    assert [bucket.server.seen("GET", f"/{name}?") for name in "abc"] == [1, 2, 1]


def test_a_copy_larger_than_the_limit_is_alone(bucket: Bucket, tmp_path: Path) -> None:
    store = S3Store(bucket.options.model_copy(update={"cache_bytes": 0}), tmp_path)

    for name in "abc":
        assert store.fetch(store.put(name, name.encode())).read_bytes() == name.encode()
        assert len(copies(tmp_path)) == 1


def test_a_copy_at_work_elsewhere_is_not_removed(bucket: Bucket, tmp_path: Path) -> None:
    options = bucket.options.model_copy(update={"cache_bytes": 0})
    ours, theirs = S3Store(options, tmp_path), S3Store(options, tmp_path)
    ref = ours.put("ours", b"ours")

    for name in ("downloaded", "reused"):
        path = ours.fetch(ref)
        theirs.fetch(theirs.put(name, b"theirs"))
        assert path.read_bytes() == b"ours"

    with path.open("rb") as reader:
        ours.close()
        theirs.fetch(theirs.put("more", b"more"))
        assert not path.exists()
        assert reader.read() == b"ours"


def test_while_one_downloads_the_others_wait(tmp_path: Path) -> None:
    ref = ArtifactRef(key=KEY, sha256=hashlib.sha256(b"pixels").hexdigest(), size=6)
    two_at_once = threading.Barrier(2)
    downloads = []

    def download(_: ArtifactRef) -> Generator[bytes, None, None]:
        downloads.append(threading.current_thread())
        with contextlib.suppress(threading.BrokenBarrierError):
            two_at_once.wait(timeout=0.3)  # in vain
        yield b"pixels"

    readers = [threading.Thread(target=DiskCache(tmp_path, 1_000).fetch, args=(ref, download)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()

    assert len(downloads) == 1


def test_an_idle_copy_goes(store: S3Store, tmp_path: Path) -> None:
    path = store.fetch(store.put(KEY, b"pixels"))
    store.close()
    os.utime(path, (0, path.stat().st_mtime))

    DiskCache(tmp_path / "cache", 1_000)

    assert not path.exists()


def test_a_dead_download_makes_room(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1_000)
    dead = tmp_path / "0123.dead"
    dead.write_bytes(b"half" * 200)

    def download(ref: ArtifactRef) -> Generator[bytes, None, None]:
        yield bytes(ref.size)

    ref = ArtifactRef(key=KEY, sha256=hashlib.sha256(bytes(900)).hexdigest(), size=900)

    assert copies(tmp_path) == [dead]
    assert [cache.fetch(ref, download)] == copies(tmp_path)


def test_a_full_disk_is_told_and_leaves_nothing(
    store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    ref = store.put(KEY, b"pixels")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(DiskFull):
            store.fetch(ref)

    assert copies(tmp_path / "cache") == []
    assert store.fetch(ref).read_bytes() == b"pixels"


def test_an_object_of_another_size_is_refused_before_it_is_read(store: S3Store, bucket: Bucket) -> None:
    ref = store.put(KEY, b"pixels")
    bucket.raw.put_object(Bucket=bucket.name, Key=KEY, Body=b"pixels and more")

    for read in (store.get, store.fetch):
        with pytest.raises(ArtifactLost, match="15 bytes, not 6"):
            read(ref)


def test_a_lost_object_leaves_no_copy(store: S3Store, bucket: Bucket, tmp_path: Path) -> None:
    ref = store.put(KEY, b"pixels")
    bucket.raw.put_object(Bucket=bucket.name, Key=KEY, Body=b"pixelz")

    with pytest.raises(ArtifactLost):
        store.fetch(ref)
    assert copies(tmp_path / "cache") == []


def test_processes_that_want_the_same_object_fetch_it_once(store: S3Store, bucket: Bucket, tmp_path: Path) -> None:
    ref = store.put(KEY, os.urandom(3_000_000))
    readers = [SPAWN.Process(target=_fetch, args=(bucket.options, tmp_path / "cache", ref)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()

    assert [reader.exitcode for reader in readers] == [0] * 3
    assert bucket.server.seen("GET", KEY) == 1


def _fetch(options: S3Options, cache: Path, ref: ArtifactRef) -> None:
    content = S3Store(options, cache).fetch(ref).read_bytes()
    assert hashlib.sha256(content).hexdigest() == ref.sha256
