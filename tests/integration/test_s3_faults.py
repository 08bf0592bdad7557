"""An object store that fails: each call ends right or as `StoreUnavailable`, and nothing is half visible."""

from __future__ import annotations

import base64
import hashlib
import io
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.domain import ArtifactRef
from pipeline.errors import ConfigurationError, SourceChanged, StoreUnavailable
from pipeline.stores.s3 import S3Store
from pipeline.stores.s3_options import MIB
from tests.s3_server import Bucket, Kind, fresh_bucket

KEY = "document/version/source/abc.pdf"
LARGE = os.urandom(12 * MIB)
LARGE_SHA256 = hashlib.sha256(LARGE).hexdigest()
KINDS: tuple[Kind, ...] = ("slow_down", "reset", "lost_reply")
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 asks again without a pause."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("botocore.retries.adaptive.ClientRateLimiter.on_sending_request", lambda *_, **__: None)


@pytest.fixture
def bucket() -> Bucket:
    """Two tries a request, parts of 5 MiB."""
    return fresh_bucket(max_attempts=2, part_bytes=5 * MIB, prefix="pagegate/prod")


@pytest.fixture
def store(bucket: Bucket, tmp_path: Path) -> S3Store:
    return S3Store(bucket.options, tmp_path / "cache")


def put_large(store: S3Store, key: str = KEY) -> ArtifactRef:
    return store.put_stream(key, io.BytesIO(LARGE), LARGE_SHA256)


@pytest.mark.parametrize("kind", KINDS)
def test_one_failure_is_survived(store: S3Store, bucket: Bucket, kind: Kind) -> None:
    for method in ("PUT", "GET"):
        bucket.server.fail(method, KEY, kind)

    assert store.get(store.put(KEY, b"pixels")) == b"pixels"
    assert bucket.server.seen("PUT", KEY) == bucket.server.seen("GET", KEY) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["uploads", "partNumber=2", "uploadId"])
def test_one_failure_of_an_upload_by_parts_is_survived(store: S3Store, bucket: Bucket, part: str, kind: Kind) -> None:
    bucket.server.fail("PUT" if part == "partNumber=2" else "POST", part, kind)

    ref = put_large(store)

    assert store.get(ref) == LARGE
    assert list(store.keys()) == [KEY]
    assert bucket.uploads() == (part == "uploads" and kind == "lost_reply")  # its id never arrived


@pytest.mark.parametrize("kind", KINDS)
def test_lasting_failure_is_unavailable_and_shows_nothing(store: S3Store, bucket: Bucket, kind: Kind) -> None:
    bucket.server.fail("PUT", "partNumber=2", kind, times=9)

    with pytest.raises(StoreUnavailable, match=bucket.name):
        put_large(store)

    assert list(store.keys()) == []
    assert bucket.uploads() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_completion_that_never_answers_is_settled_by_looking(store: S3Store, bucket: Bucket, kind: Kind) -> None:
    bucket.server.fail("POST", "uploadId", kind, times=9)

    if kind == "lost_reply":
        assert store.get(put_large(store)) == LARGE
    else:
        with pytest.raises(StoreUnavailable, match=bucket.name):
            put_large(store)
        assert list(store.keys()) == []
    assert bucket.uploads() == 0


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
@pytest.mark.parametrize("kind", KINDS)
def test_lasting_failure_names_bucket_and_endpoint(store: S3Store, bucket: Bucket, method: str, kind: Kind) -> None:
    ref = store.put(KEY, b"pixels")
    bucket.server.fail(method, bucket.name, kind, times=99)
    calls: dict[str, list[Callable[[], object]]] = {
        "PUT": [lambda: store.put(KEY, b"pixels")],
        "GET": [lambda: store.get(ref), lambda: store.fetch(ref), lambda: list(store.keys())],
        "DELETE": [lambda: store.delete(KEY)],
    }

    for call in calls[method]:
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert bucket.name in caught.value.message
        assert str(bucket.options.endpoint_url) in caught.value.message


def test_an_answer_that_breaks_off_is_unavailable_and_is_not_kept(store: S3Store, bucket: Bucket) -> None:
    ref = put_large(store)

    for read in (store.get, store.fetch):
        bucket.server.fail("GET", KEY, "cut_body")
        with pytest.raises(StoreUnavailable):
            read(ref)
    assert store.get(ref) == store.fetch(ref).read_bytes() == LARGE


def test_nothing_listens(bucket: Bucket, tmp_path: Path) -> None:
    options = bucket.options.model_copy(update={"endpoint_url": "http://127.0.0.1:9", "max_attempts": 1})

    with pytest.raises(StoreUnavailable, match="check endpoint_url"):
        S3Store(options, tmp_path).put(KEY, b"pixels")


def test_an_absent_bucket_is_no_lost_artifact(bucket: Bucket, tmp_path: Path) -> None:
    store = S3Store(bucket.options.model_copy(update={"bucket": "nowhere"}), tmp_path)
    ref = ArtifactRef(key=KEY, sha256="0" * 64, size=1)

    for call in (lambda: store.get(ref), lambda: store.put(KEY, b"x"), lambda: list(store.keys())):
        with pytest.raises(StoreUnavailable, match="create the bucket"):
            call()


def test_a_large_stream_of_another_digest_leaves_nothing(store: S3Store, bucket: Bucket) -> None:
    with pytest.raises(SourceChanged):
        store.put_stream(KEY, io.BytesIO(LARGE), "0" * 64)

    assert list(store.keys()) == []
    assert bucket.uploads() == 0


def test_a_large_stream_that_breaks_off_leaves_nothing(store: S3Store, bucket: Bucket) -> None:
    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 7 * MIB:
                raise ConnectionResetError("the source went away")
            return super().read(size)

    with pytest.raises(ConnectionResetError):
        store.put_stream(KEY, Breaking(LARGE), LARGE_SHA256)

    assert list(store.keys()) == []
    assert bucket.uploads() == 0


@pytest.mark.parametrize("size", [5 * MIB - 1, 5 * MIB, 5 * MIB + 1, 10 * MIB])
def test_streams_around_the_size_of_a_part(store: S3Store, size: int) -> None:
    content = LARGE[:size]

    assert store.get(store.put_stream(KEY, io.BytesIO(content), hashlib.sha256(content).hexdigest())) == content


def test_the_digest_is_kept_as_metadata_under_the_prefix(store: S3Store, bucket: Bucket) -> None:
    refs = [store.put("a", b"pixels"), put_large(store, "b")]

    for ref in refs:
        head = bucket.raw.head_object(Bucket=bucket.name, Key=f"pagegate/prod/{ref.key}")
        assert head["Metadata"] == {"sha256": ref.sha256}


@pytest.mark.parametrize("checksums", ["when_supported", "when_required"])
def test_the_server_is_given_checksums_where_it_takes_them(bucket: Bucket, tmp_path: Path, checksums: str) -> None:
    store = S3Store(bucket.options.model_copy(update={"checksums": checksums}), tmp_path)
    bodies = [b"pixels", LARGE[: 5 * MIB], LARGE[5 * MIB : 10 * MIB], LARGE[10 * MIB :]]
    expected = [base64.b64encode(hashlib.sha256(body).digest()).decode() for body in bodies]

    store.put("a", b"pixels")
    put_large(store, "b")

    assert bucket.server.checksums == (expected if checksums == "when_supported" else [])


def test_what_is_not_ours_is_not_listed(store: S3Store, bucket: Bucket) -> None:
    for key in ("pagegate/prod/", "pagegate/prod/folder/", "pagegate/production/x", "x"):
        bucket.raw.put_object(Bucket=bucket.name, Key=key, Body=b"")
    store.put("folder/y", b"y")

    assert list(store.keys()) == ["folder/y"]


def test_more_keys_than_one_answer_holds(store: S3Store, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    keys = {store.put(f"page/{number}", b"").key for number in range(7)}

    assert sorted(store.keys("page/")) == sorted(keys)
    assert bucket.server.seen("GET", "list-type=2") == 3


def test_without_credentials_the_error_says_so(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = bucket.options.model_copy(update={"access_key_id": None, "secret_access_key": None})

    with pytest.raises(StoreUnavailable, match="give credentials"):
        S3Store(options, tmp_path).put(KEY, b"pixels")


def test_an_absent_ca_file_is_a_matter_of_configuration(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ca_bundle"):
        S3Store(bucket.options.model_copy(update={"ca_bundle": tmp_path / "none.pem"}), tmp_path)
