"""Sources in buckets that are not ours: read whole, into a temporary file, or refused with a typed reason."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import DiskFull, FileTooLarge, SourceMissing, StoreUnavailable
from pipeline.protocols import RemoteSources
from pipeline.stores.s3_options import MIB
from pipeline.stores.s3_sources import TEMPORARY, S3Sources
from tests.s3_server import SECRET, Bucket, Kind, fresh_bucket

CONTENT = os.urandom(3 * MIB)
LIMIT = len(CONTENT)
KINDS: tuple[Kind, ...] = ("slow_down", "reset", "lost_reply")
ODD = [
    "a b.pdf",
    "手册/说明.pdf",
    "q?x=1#y.pdf",
    "100%.pdf",
    "%41.pdf",
    "a+b&c;d.pdf",
    "a//b.pdf",
    "~.pdf",
    "e\u0301.pdf",
]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 asks again without a pause."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("botocore.retries.adaptive.ClientRateLimiter.on_sending_request", lambda *_, **__: None)


@pytest.fixture
def bucket() -> Bucket:
    """Of somebody else: the options name another one, and a prefix in it."""
    return fresh_bucket(max_attempts=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "temporary"


@pytest.fixture
def sources(bucket: Bucket, folder: Path) -> Iterator[S3Sources]:
    made = S3Sources(bucket.options.model_copy(update={"bucket": "the-stores-own", "prefix": "pagegate"}), folder)
    yield made
    made.close()


@pytest.fixture
def uri(bucket: Bucket) -> str:
    put(bucket, "manuals/a.pdf")
    return f"s3://{bucket.name}/manuals/a.pdf"


def put(bucket: Bucket, *keys: str, content: bytes = CONTENT) -> None:
    for key in keys:
        bucket.raw.put_object(Bucket=bucket.name, Key=key, Body=content)


def fetch(sources: RemoteSources, uri: str, limit: int = LIMIT) -> bytes:
    with sources.fetch(uri, limit) as path:
        return path.read_bytes()


def left(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []


def test_an_object_is_read_into_a_file_that_is_removed_afterwards(
    sources: S3Sources, bucket: Bucket, folder: Path, uri: str
) -> None:
    with sources.fetch(uri, LIMIT) as path:
        assert path.read_bytes() == CONTENT
        assert left(folder) == [path]

    assert left(folder) == []
    assert bucket.server.seen("GET", "manuals/a.pdf") == 1


def test_two_may_be_read_at_once(sources: S3Sources, uri: str) -> None:
    with sources.fetch(uri, LIMIT) as one, sources.fetch(uri, LIMIT) as other:
        assert one != other
        assert one.read_bytes() == other.read_bytes()


def test_the_file_is_removed_whatever_its_reader_raises(sources: S3Sources, folder: Path, uri: str) -> None:
    with pytest.raises(KeyboardInterrupt), sources.fetch(uri, LIMIT):
        raise KeyboardInterrupt
    assert left(folder) == []


def test_a_reader_may_remove_the_file_itself(sources: S3Sources, uri: str) -> None:
    with sources.fetch(uri, LIMIT) as path:
        path.unlink()


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1])
def test_objects_around_the_size_of_a_chunk(sources: S3Sources, bucket: Bucket, size: int) -> None:
    put(bucket, "a.pdf", content=CONTENT[:size])

    assert fetch(sources, f"s3://{bucket.name}/a.pdf") == CONTENT[:size]


def test_one_that_is_too_large_is_refused_before_it_is_read(
    sources: S3Sources, folder: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.response.StreamingBody.read", lambda *_: pytest.fail("it was read"))

    with pytest.raises(FileTooLarge, match="more than limits"):
        fetch(sources, uri, LIMIT - 1)
    assert left(folder) == []


def test_what_is_not_there_is_missing(sources: S3Sources, bucket: Bucket) -> None:
    for uri in (f"s3://{bucket.name}/absent.pdf", "s3://absent-bucket/a.pdf"):
        with pytest.raises(SourceMissing, match=uri):
            fetch(sources, uri)
    with pytest.raises(SourceMissing, match="absent-bucket"):
        list(sources.list("s3://absent-bucket/"))


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "a.pdf",
        "file:///a.pdf",
        "s3://",
        "s3:///a.pdf",
        "s3://bucket",
        "s3://bucket/",
        "s3://b d/a",
        "s3://bucket/%ff",
    ],
)
def test_what_names_no_object_is_missing(sources: S3Sources, uri: str) -> None:
    with pytest.raises(SourceMissing, match=r"s3://|correct it"):
        fetch(sources, uri)


@pytest.mark.parametrize("kind", KINDS)
def test_one_failure_is_survived(sources: S3Sources, bucket: Bucket, uri: str, kind: Kind) -> None:
    bucket.server.fail("GET", "manuals/a.pdf", kind)

    assert fetch(sources, uri) == CONTENT


@pytest.mark.parametrize("kind", KINDS)
def test_a_lasting_failure_is_unavailable(
    sources: S3Sources, bucket: Bucket, folder: Path, uri: str, kind: Kind
) -> None:
    bucket.server.fail("GET", bucket.name, kind, times=99)

    for call in (lambda: fetch(sources, uri), lambda: list(sources.list(f"s3://{bucket.name}/"))):
        with pytest.raises(StoreUnavailable, match=bucket.name) as caught:
            call()
        assert SECRET not in caught.value.message
    assert left(folder) == []


def test_a_body_that_is_cut_short_is_unavailable(sources: S3Sources, bucket: Bucket, folder: Path, uri: str) -> None:
    bucket.server.fail("GET", "manuals/a.pdf", "cut_body")

    with pytest.raises(StoreUnavailable):
        fetch(sources, uri)
    assert left(folder) == []
    assert fetch(sources, uri) == CONTENT


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_apart_and_leaves_nothing(
    sources: S3Sources, folder: Path, uri: str, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    opened = Path.open

    class Full:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, _chunk: bytes) -> int:
            raise OSError(code, os.strerror(code))

        def close(self) -> None:
            self._file.close()
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "open", lambda path, *mode: Full(opened(path, *mode)))

    with pytest.raises(DiskFull, match="TMPDIR"):
        fetch(sources, uri)
    assert left(folder) == []


def test_a_failing_disk_is_unavailable_and_leaves_nothing(sources: S3Sources, folder: Path, uri: str) -> None:
    """A limit on the size of files fails the write itself, and the close after it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB + 1, limits[1]))
    try:
        with pytest.raises(StoreUnavailable, match="temporary files"):
            fetch(sources, uri)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert left(folder) == []


def test_what_a_killed_process_left_is_removed_after_a_day(bucket: Bucket, folder: Path) -> None:
    folder.mkdir()
    fresh, stale, foreign = (folder / name for name in (f"{TEMPORARY}1.pdf", f"{TEMPORARY}2.pdf", "other.pdf"))
    for path in (fresh, stale, foreign):
        path.touch()
    for path in (stale, foreign):
        os.utime(path, (time.time() - 90_000, time.time() - 90_000))

    S3Sources(bucket.options, folder)

    assert sorted(left(folder)) == sorted([fresh, foreign])


def test_all_pdfs_below_a_prefix_are_listed_in_order(sources: S3Sources, bucket: Bucket) -> None:
    put(bucket, "m/b.PDF", "m/a.pdf", "m/deep/c.Pdf", "m/a.txt", "m/", "m2/d.pdf", "e.pdf", content=b"")
    name = bucket.name

    assert list(sources.list(f"s3://{name}/m/")) == [f"s3://{name}/m/{key}" for key in ("a.pdf", "b.PDF", "deep/c.Pdf")]
    assert len(list(sources.list(f"s3://{name}"))) == len(list(sources.list(f"s3://{name}/"))) == 5
    assert list(sources.list(f"s3://{name}/nothing/")) == []


def test_more_objects_than_one_answer_holds(
    sources: S3Sources, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    put(bucket, *(f"{number}.pdf" for number in range(7)), content=b"")

    assert list(sources.list(f"s3://{bucket.name}/")) == [f"s3://{bucket.name}/{number}.pdf" for number in range(7)]
    assert bucket.server.seen("GET", "list-type=2") == 3


def test_an_object_that_is_named_is_listed_without_being_asked_for(sources: S3Sources, bucket: Bucket) -> None:
    assert list(sources.list(f"s3://{bucket.name}/a/b.pdf")) == [f"s3://{bucket.name}/a/b.pdf"]
    assert list(sources.list(f"s3://{bucket.name}/a b.pdf")) == [f"s3://{bucket.name}/a%20b.pdf"]
    assert bucket.server.requests[1:] == []


@pytest.mark.parametrize("key", ODD)
def test_odd_keys_are_listed_quoted_and_fetched_by_that(
    sources: S3Sources, bucket: Bucket, folder: Path, key: str
) -> None:
    put(bucket, f"odd/{key}", content=key.encode())

    (uri,) = sources.list(f"s3://{bucket.name}/odd/")

    assert uri.isascii()
    assert " " not in uri
    assert list(sources.list(uri)) == [uri]
    assert fetch(sources, uri) == key.encode()
    assert left(folder) == []
