"""Uploads by parts to a bucket that fails, by processes that die: what was sent is not sent again, and only the right
bytes become an object."""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import os
import random
import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest

from pipeline.domain import ArtifactRef, UploadedPart, UploadSession
from pipeline.errors import SourceChanged, SourceMissing, StoreUnavailable, UploadGone
from pipeline.protocols import MultipartStore, UploadLog
from pipeline.stages import CODE_VERSIONS
from pipeline.stores.s3 import S3Store
from pipeline.stores.s3_options import MIB, S3Options
from pipeline.stores.sql import SqlLedger
from pipeline.upload import ATTEMPTS, MAX_PARTS, abort_stale, part_size, upload
from tests.s3_server import Bucket, Kind, fresh_bucket

DOCUMENT, VERSION = uuid.UUID(int=1), uuid.UUID(int=2)
KEY = f"{DOCUMENT}/{VERSION}/source/abc.pdf"
PREFIX = "pagegate/prod"
PART = 5 * MIB
CONTENT = os.urandom(3 * PART + 1)
"""Four parts."""
PARTS = 4
KINDS: tuple[Kind, ...] = ("slow_down", "reset", "lost_reply")
SPAWN = multiprocessing.get_context("spawn")
YEAR_S = 365 * 86_400.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 asks again without a pause."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("botocore.retries.adaptive.ClientRateLimiter.on_sending_request", lambda *_, **__: None)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Two tries a request, parts of 5 MiB."""
    made = fresh_bucket(max_attempts=2, part_bytes=PART, prefix=PREFIX)
    _answer_as_s3_for_uploads_that_are_gone(monkeypatch)
    monkeypatch.setattr(made.server, "_application", _one_at_a_time(made.server._application))
    return made


def _one_at_a_time(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """moto's parts are not safe for threads: it fails with a status of 500 when one is sent twice at once."""
    lock = threading.Lock()

    def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with lock:
            return list(application(environ, start_response))

    return call


def _answer_as_s3_for_uploads_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto fails with a status of 500 there, S3 says NoSuchUpload."""
    from moto.s3.exceptions import NoSuchUpload
    from moto.s3.models import S3Backend

    def checked(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(backend: Any, bucket_name: str, upload_id: str, *rest: Any, **named: Any) -> Any:
            if upload_id not in backend.get_bucket(bucket_name).multiparts:
                raise NoSuchUpload(upload_id=upload_id)
            return method(backend, bucket_name, upload_id, *rest, **named)

        return call

    for name in ("upload_part", "complete_multipart_upload"):
        monkeypatch.setattr(S3Backend, name, checked(getattr(S3Backend, name)))


@pytest.fixture
def store(bucket: Bucket, tmp_path: Path) -> Iterator[S3Store]:
    made = S3Store(bucket.options, tmp_path / "cache")
    yield made
    made.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"


@pytest.fixture
def log(url: str) -> Iterator[UploadLog]:
    ledger = SqlLedger(url, CODE_VERSIONS)
    ledger.migrate()
    yield ledger.uploads
    ledger.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "source.pdf"
    made.write_bytes(CONTENT)
    return made


def ref_of(content: bytes) -> ArtifactRef:
    return ArtifactRef(key=KEY, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


REF = ref_of(CONTENT)


def sent(bucket: Bucket) -> list[int]:
    """The numbers of the parts in the order of their requests, however these ended."""
    addresses = [address for method, address in bucket.server.requests if method == "PUT" and "partNumber" in address]
    return [int(address.partition("partNumber=")[2].partition("&")[0]) for address in addresses]


def listed(bucket: Bucket) -> set[int]:
    """The parts that the bucket has of the uploads that are open."""
    numbers: set[int] = set()
    for found in bucket.raw.list_multipart_uploads(Bucket=bucket.name).get("Uploads", ()):
        answer = bucket.raw.list_parts(Bucket=bucket.name, Key=found["Key"], UploadId=found["UploadId"])
        numbers |= {part["PartNumber"] for part in answer.get("Parts", ())}
    return numbers


def expire(bucket: Bucket) -> None:
    """Abort whatever is open, behind the uploader's back."""
    for found in bucket.raw.list_multipart_uploads(Bucket=bucket.name).get("Uploads", ()):
        bucket.raw.abort_multipart_upload(Bucket=bucket.name, Key=found["Key"], UploadId=found["UploadId"])


def check_end(store: S3Store, bucket: Bucket, log: UploadLog) -> None:
    """The object has the right bytes, and nothing is left over."""
    assert store.get(REF) == CONTENT
    assert log.find(KEY) is None
    assert bucket.uploads() == 0


class Killed(BaseException):
    """The process is no more."""


class Disturbed:
    """An object around another one: `disturb` is called before or after the `nth` call of a method."""

    def __init__(
        self, whole: object, method: str, disturb: Callable[[], object], nth: int = 1, when: str = "before"
    ) -> None:
        self._whole, self._method, self._disturb, self._when = whole, method, disturb, when
        self._left = nth

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._whole, name)
        return self._around(found) if name == self._method else found

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def disturbed(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._when == "before":
                self._disturb()
            result = call(*arguments)
            if self._left == 0 and self._when == "after":
                self._disturb()
            return result

        return disturbed


def die() -> None:
    raise Killed


def test_the_store_is_a_multipart_store(store: S3Store) -> None:
    typed: MultipartStore = store
    assert typed.part_bytes == PART


def test_a_fresh_upload_sends_each_part_once(store: S3Store, bucket: Bucket, log: UploadLog, path: Path) -> None:
    heard: list[int] = []

    upload(path, REF, store, log, heard.append)

    assert sent(bucket) == [1, 2, 3, 4]
    assert heard == [0, PART, 2 * PART, 3 * PART, REF.size, REF.size]
    head = bucket.raw.head_object(Bucket=bucket.name, Key=f"{PREFIX}/{KEY}")
    assert head["Metadata"] == {"sha256": REF.sha256}
    check_end(store, bucket, log)


def test_what_is_there_is_not_sent_again(store: S3Store, bucket: Bucket, log: UploadLog, path: Path) -> None:
    upload(path, REF, store, log)
    path.unlink()
    bucket.server.reset()

    upload(path, REF, store, log)

    assert sent(bucket) == []
    assert bucket.server.seen("POST", KEY) == 0


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART])
def test_files_around_the_size_of_a_part(store: S3Store, bucket: Bucket, log: UploadLog, path: Path, size: int) -> None:
    content = CONTENT[:size]
    path.write_bytes(content)

    upload(path, ref_of(content), store, log)

    assert store.get(ref_of(content)) == content
    assert len(sent(bucket)) == (-(-size // PART) if size >= PART else 0)
    assert log.find(KEY) is None


@pytest.mark.parametrize(
    ("victim", "method", "nth"),
    [
        ("store", "holds", 1),
        ("log", "find", 1),
        ("store", "begin_upload", 1),
        ("log", "begin", 1),
        ("store", "uploaded_parts", 1),
        ("store", "send_part", 1),
        ("store", "send_part", 3),
        ("log", "note", 1),
        ("log", "note", 3),
        ("store", "uploaded_parts", 2),
        ("store", "complete_upload", 1),
        ("store", "holds", 2),
        ("log", "forget", 1),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_anywhere_and_begun_again_no_listed_part_is_sent_again(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path, victim: str, method: str, nth: int, when: str
) -> None:
    parts: dict[str, Any] = {"store": store, "log": log}
    with pytest.raises(Killed):
        upload(path, REF, **(parts | {victim: Disturbed(parts[victim], method, die, nth, when)}))
    had = listed(bucket) if log.find(KEY) else set()
    bucket.server.reset()

    upload(path, REF, store, log)

    assert had.isdisjoint(sent(bucket))
    begun_in_vain = (method, when) in (("begin_upload", "after"), ("begin", "before"))
    assert abort_stale(store, log, 3600) == int(begun_in_vain)
    check_end(store, bucket, log)


def test_a_resumed_upload_tells_first_what_is_there(store: S3Store, log: UploadLog, path: Path) -> None:
    heard: list[int] = []
    with pytest.raises(Killed):
        upload(path, REF, Disturbed(store, "send_part", die, nth=3), log)

    upload(path, REF, store, log, heard.append)

    assert heard == [2 * PART, 3 * PART, REF.size, REF.size]


def test_a_session_is_resumed_with_its_own_size_of_parts(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        upload(path, REF, Disturbed(store, "send_part", die, nth=3), log)
    bucket.server.reset()

    upload(path, REF, S3Store(bucket.options.model_copy(update={"part_bytes": 7 * MIB}), tmp_path), log)

    assert sent(bucket) == [3, 4]
    check_end(store, bucket, log)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["partNumber=2", "uploads", "uploadId", "list"])
def test_one_failure_is_survived(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path, part: str, kind: Kind
) -> None:
    method = {"partNumber=2": "PUT", "list": "GET"}.get(part, "POST")
    bucket.server.fail(method, "uploadId" if part == "list" else part, kind)

    upload(path, REF, store, log)

    lost = part == "uploads" and kind == "lost_reply"  # its id never arrived
    assert abort_stale(store, log, 3600) == int(lost)
    check_end(store, bucket, log)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lasting_failure_at_a_part_keeps_what_was_sent(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path, kind: Kind
) -> None:
    bucket.server.fail("PUT", "partNumber=3", kind, times=9)
    with pytest.raises(StoreUnavailable, match=bucket.name):
        upload(path, REF, store, log)
    bucket.server.reset()

    upload(path, REF, store, log)

    assert sent(bucket) == ([4] if kind == "lost_reply" else [3, 4])
    check_end(store, bucket, log)


def test_a_part_whose_answer_was_lost_is_noted_when_it_is_found(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path
) -> None:
    bucket.server.fail("PUT", "partNumber=2", "lost_reply", times=2)
    with pytest.raises(StoreUnavailable):
        upload(path, REF, store, log)
    session = log.find(KEY)
    assert session is not None
    assert list(log.parts(session)) == [1]

    with pytest.raises(Killed):
        upload(path, REF, Disturbed(store, "send_part", die), log)

    assert log.parts(session) == {part.number: part.etag for part in store.uploaded_parts(KEY, session.upload_id)}
    assert sorted(log.parts(session)) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_completion_that_never_answers_is_settled_by_looking(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path, kind: Kind
) -> None:
    bucket.server.fail("POST", "uploadId", kind, times=99)

    if kind == "lost_reply":
        upload(path, REF, store, log)
    else:
        with pytest.raises(StoreUnavailable, match=bucket.name):
            upload(path, REF, store, log)
        assert list(store.keys()) == []
        bucket.server.faults.clear()
        upload(path, REF, store, log)
    assert sent(bucket) == [1, 2, 3, 4]
    check_end(store, bucket, log)


@pytest.mark.parametrize(
    ("method", "nth", "expected"),
    [
        ("uploaded_parts", 1, PARTS),
        ("send_part", 1, 1 + PARTS),
        ("send_part", 3, 3 + PARTS),
        ("uploaded_parts", 2, 2 * PARTS),
        ("complete_upload", 1, 2 * PARTS),
    ],
)
def test_a_session_that_expires_is_begun_anew(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path, method: str, nth: int, expected: int
) -> None:
    upload(path, REF, Disturbed(store, method, lambda: expire(bucket), nth), log)

    assert len(sent(bucket)) == expected
    assert bucket.server.seen("POST", "uploads") == 2
    check_end(store, bucket, log)


def test_a_session_that_expired_between_two_runs_is_begun_anew(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path
) -> None:
    with pytest.raises(Killed):
        upload(path, REF, Disturbed(store, "send_part", die, nth=3), log)
    expire(bucket)
    bucket.server.reset()

    upload(path, REF, store, log)

    assert sent(bucket) == [1, 2, 3, 4]
    check_end(store, bucket, log)


def test_a_store_that_forgets_every_session_is_given_up(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path
) -> None:
    forgetful: Any = store
    for attempt in range(ATTEMPTS):
        forgetful = Disturbed(forgetful, "send_part", lambda: expire(bucket), nth=attempt + 1)

    with pytest.raises(StoreUnavailable, match=f"{ATTEMPTS} attempts"):
        upload(path, REF, forgetful, log)

    assert bucket.server.seen("POST", "uploads") == ATTEMPTS
    assert log.find(KEY) is None
    assert bucket.uploads() == 0


def test_a_session_of_other_content_is_aborted(store: S3Store, bucket: Bucket, log: UploadLog, path: Path) -> None:
    other = ref_of(CONTENT[:-1])
    session = UploadSession(
        key=KEY, upload_id=store.begin_upload(other), sha256=other.sha256, size=other.size, part_bytes=PART
    )
    log.begin(session)
    for number in range(1, 4):
        log.note(session, store.send_part(KEY, session.upload_id, number, CONTENT[:PART]))
    bucket.server.reset()

    upload(path, REF, store, log)

    assert sent(bucket) == [1, 2, 3, 4]
    assert bucket.server.seen("POST", "uploadId") == 1  # nothing of the other was completed
    check_end(store, bucket, log)


@pytest.mark.parametrize("wrong", [CONTENT[1 : PART + 1], CONTENT[: PART - 1]])
def test_a_listed_part_of_another_etag_or_size_is_sent_again(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path, wrong: bytes
) -> None:
    with pytest.raises(Killed):
        upload(path, REF, Disturbed(store, "send_part", die, nth=4), log)
    session = log.find(KEY)
    assert session is not None
    store.send_part(KEY, session.upload_id, 2, wrong)
    bucket.server.reset()

    upload(path, REF, store, log)

    assert sent(bucket) == [2, 4]
    check_end(store, bucket, log)


def test_a_listed_part_of_another_size_that_was_not_noted_is_sent_again(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path
) -> None:
    with pytest.raises(Killed):
        upload(path, REF, Disturbed(store, "send_part", die, nth=4), log)
    session = log.find(KEY)
    assert session is not None
    store.send_part(KEY, session.upload_id, PARTS, b"cut short")
    bucket.server.reset()

    upload(path, REF, store, log)

    assert sent(bucket) == [PARTS]
    check_end(store, bucket, log)


def test_a_part_replaced_between_listing_and_completing_is_sent_again(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path
) -> None:
    def replace() -> None:
        session = log.find(KEY)
        assert session is not None
        store.send_part(KEY, session.upload_id, 1, CONTENT[1 : PART + 1])

    upload(path, REF, Disturbed(store, "complete_upload", replace), log)

    assert sent(bucket) == [1, 2, 3, 4, 1, 1]
    check_end(store, bucket, log)


def test_one_that_finds_its_session_completed_by_another_is_done(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path
) -> None:
    upload(path, REF, Disturbed(store, "send_part", lambda: upload(path, REF, store, log), nth=2), log)

    assert sent(bucket) == [1, 2, 3, 4, 2]  # the last one found no upload any more
    check_end(store, bucket, log)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.timeout(60)
def test_two_at_once_end_well(
    store: S3Store, bucket: Bucket, log: UploadLog, url: str, path: Path, tmp_path: Path, seed: int
) -> None:
    ready = threading.Barrier(2)

    def work(number: int) -> None:
        ledger = SqlLedger(url, CODE_VERSIONS)
        ready.wait()
        upload(path, REF, S3Store(bucket.options, tmp_path / f"cache-{number}"), ledger.uploads)
        ledger.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))

    abort_stale(store, log, 3600)  # of two that were begun, one may not have been noted
    check_end(store, bucket, log)


@pytest.mark.parametrize("change", [CONTENT[:-1], CONTENT + b"x", b"x" + CONTENT[1:], b""])
def test_a_file_that_changed_since_its_digest_was_taken_is_refused(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path, change: bytes
) -> None:
    path.write_bytes(change)

    with pytest.raises(SourceChanged):
        upload(path, REF, store, log)

    assert sent(bucket) == []
    assert list(store.keys()) == []
    assert bucket.uploads() == 0
    assert log.find(KEY) is None


def test_a_file_that_changes_while_it_is_sent_is_never_mixed(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path
) -> None:
    def change() -> None:
        times = path.stat()
        with path.open("r+b") as file:
            file.seek(2 * PART)
            file.write(b"another version")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # whatever the clock says

    with pytest.raises(SourceChanged):
        upload(path, REF, Disturbed(store, "send_part", change, nth=2), log)

    assert sent(bucket) == [1, 2]
    assert list(store.keys()) == []
    assert bucket.uploads() == 0
    assert log.find(KEY) is None


@pytest.mark.parametrize("nth", [1, 3])
def test_a_file_that_is_gone_is_missing(store: S3Store, log: UploadLog, path: Path, nth: int) -> None:
    with pytest.raises(SourceMissing):
        upload(path, REF, Disturbed(store, "send_part", path.unlink, nth), log)


def test_a_small_file_that_is_gone_is_missing(store: S3Store, log: UploadLog, tmp_path: Path) -> None:
    with pytest.raises(SourceMissing):
        upload(tmp_path / "absent.pdf", ref_of(b"small"), store, log)


def test_sessions_in_which_nothing_happens_are_aborted(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path
) -> None:
    with pytest.raises(Killed):
        upload(path, REF, Disturbed(store, "send_part", die, nth=3), log)

    assert abort_stale(store, log, 3600) == 0
    assert listed(bucket) == {1, 2}
    assert abort_stale(store, log, -3600) == 1
    assert bucket.uploads() == 0
    assert log.find(KEY) is None
    upload(path, REF, store, log)
    check_end(store, bucket, log)


def test_uploads_that_no_session_names_are_aborted_and_nobody_elses(
    store: S3Store, bucket: Bucket, log: UploadLog, path: Path
) -> None:
    """Says moto, each upload was begun in 2010."""
    with pytest.raises(Killed):
        upload(path, REF, Disturbed(store, "send_part", die, nth=3), log)
    store.begin_upload(REF)
    store.begin_upload(dataclasses.replace(REF, key=f"{VERSION}/{DOCUMENT}/source/one.pdf"))
    for key in ("elsewhere/x", f"{PREFIX}uction/x", f"{PREFIX}/no key of ours", f"{PREFIX}/somebody/elses.pdf"):
        bucket.raw.create_multipart_upload(Bucket=bucket.name, Key=key)

    assert abort_stale(store, log, 30 * YEAR_S) == 0
    assert abort_stale(store, log, 3600) == 2

    assert bucket.uploads() == 5
    upload(path, REF, store, log)
    assert sent(bucket) == [1, 2, 3, 4]


def test_aborting_what_is_not_there_is_no_error_and_the_rest_is_gone(store: S3Store) -> None:
    upload_id = store.begin_upload(REF)
    store.abort_upload(KEY, upload_id)
    store.abort_upload(KEY, upload_id)

    part = UploadedPart(number=1, size=1, etag="x")
    for call in (
        lambda: store.uploaded_parts(KEY, upload_id),
        lambda: store.send_part(KEY, upload_id, 1, b"x"),
        lambda: store.complete_upload(REF, upload_id, [part]),
    ):
        with pytest.raises(UploadGone):
            call()


def test_a_stream_whose_upload_was_aborted_is_unavailable(store: S3Store, bucket: Bucket, path: Path) -> None:
    """`put_stream` promises so; its caller knows nothing of uploads."""

    class Expiring:
        def __init__(self) -> None:
            self.file = path.open("rb")

        def read(self, size: int) -> bytes:
            if self.file.tell() > 2 * PART:
                expire(bucket)
            return self.file.read(size)

    with pytest.raises(StoreUnavailable, match="life-cycle"):
        store.put_stream(KEY, Expiring(), REF.sha256)  # type: ignore[arg-type]


def test_more_parts_than_one_answer_lists(store: S3Store, bucket: Bucket) -> None:
    def three_a_page(params: dict[str, Any], **_: Any) -> None:
        params["MaxParts"] = 3

    store._client.meta.events.register("provide-client-params.s3.ListParts", three_a_page)
    upload_id = store.begin_upload(REF)
    sent_parts = [store.send_part(KEY, upload_id, number, b"x" * number) for number in range(1, 9)]

    assert store.uploaded_parts(KEY, upload_id) == sent_parts
    assert bucket.server.seen("GET", "uploadId") == 3


def test_more_than_a_thousand_parts_are_listed(store: S3Store) -> None:
    upload_id = store.begin_upload(REF)
    for number in range(1, 1_003):
        store._client.upload_part(**store._place(KEY), UploadId=upload_id, PartNumber=number, Body=b"x")

    assert [part.number for part in store.uploaded_parts(KEY, upload_id)] == list(range(1, 1_003))


def test_completing_repeats_the_checksums_that_the_store_lists(store: S3Store, log: UploadLog, path: Path) -> None:
    """S3 demands them of an upload that was begun with checksums; moto lists none."""
    completed: list[dict[str, Any]] = []

    def list_checksums(parsed: dict[str, Any], **_: Any) -> None:
        for part in parsed.get("Parts", ()):
            part["ChecksumSHA256"] = f"checksum {part['PartNumber']}"

    def record(params: dict[str, Any], **_: Any) -> None:
        completed.extend(params["MultipartUpload"]["Parts"])

    store._client.meta.events.register("after-call.s3.ListParts", list_checksums)
    store._client.meta.events.register("provide-client-params.s3.CompleteMultipartUpload", record)

    upload(path, REF, store, log)

    found = {part["PartNumber"]: part["ChecksumSHA256"] for part in completed}
    assert found == {number: f"checksum {number}" for number in range(1, PARTS + 1)}


@pytest.mark.parametrize("least", [PART, 16 * MIB])
@pytest.mark.parametrize("size", [1, PART, 16 * MIB * MAX_PARTS, 16 * MIB * MAX_PARTS + 1, 5 << 40])
def test_parts_grow_so_that_there_are_not_too_many(size: int, least: int) -> None:
    found = part_size(size, least)

    assert found >= least
    assert -(-size // found) <= MAX_PARTS
    assert found == least or (found - MIB) * MAX_PARTS < size
    assert found <= 5 << 30  # S3 takes no larger part


class Killing:
    """The server's application: kills a process when its `at`-th part arrives, before the part is read or after it
    was taken."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()
        self.victim: int | None = None
        self.at = 0
        self.when: Literal["before", "after"] = "before"

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self._is_the_moment(environ) and self.victim:
            if self.when == "after":
                list(self._application(environ, lambda *_, **__: None))
            os.kill(self.victim, signal.SIGKILL)
            raise ConnectionAbortedError
        return self._application(environ, start_response)

    def _is_the_moment(self, environ: dict[str, Any]) -> bool:
        if environ["REQUEST_METHOD"] != "PUT" or "partNumber" not in environ.get("QUERY_STRING", ""):
            return False
        with self._lock:
            self.at -= 1
            return self.at == 0


def upload_in_a_child(options: S3Options, url: str, path: Path, ref: ArtifactRef, cache: Path) -> None:
    ledger = SqlLedger(url, CODE_VERSIONS)
    upload(path, ref, S3Store(options, cache), ledger.uploads)


@dataclasses.dataclass
class Figures:
    parts: int
    sent: int = 0
    twice: int = 0
    kills: int = 0


def kill_and_resume(bucket: Bucket, killing: Killing, kills: int, chance: random.Random, *arguments: Any) -> Figures:
    """Upload in child processes of which the first `kills` are killed at a random part; counts requests."""
    figures = Figures(parts=-(-arguments[2].size // PART))
    all_sent: list[int] = []
    for round_ in range(kills + 1):
        had = listed(bucket)
        bucket.server.reset()
        child = SPAWN.Process(target=upload_in_a_child, args=(bucket.options, *arguments))
        left = figures.parts - len(had)
        killing.at = chance.randint(1, max(1, min(left - (kills - round_), 2 * left // (kills + 1 - round_))))
        killing.when = chance.choice(["before", "after"])
        killing.victim = None
        child.start()
        killing.victim = child.pid if round_ < kills else None
        child.join()
        assert child.exitcode == (-signal.SIGKILL if round_ < kills else 0)
        figures.kills += child.exitcode == -signal.SIGKILL
        assert had.isdisjoint(sent(bucket))
        all_sent += sent(bucket)
    figures.sent = len(all_sent)
    figures.twice = len(all_sent) - len(set(all_sent))
    return figures


def show(megabytes: int, bucket: Bucket, log: UploadLog, url: str, tmp_path: Path, seed: int) -> None:
    """Prints its figures: ``pytest -s``."""
    content = random.Random(seed).randbytes(megabytes * 1_000_000)
    path = tmp_path / "large.pdf"
    path.write_bytes(content)
    ref = ref_of(content)
    killing = Killing(bucket.server._application)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket.server, "_application", killing)
        figures = kill_and_resume(bucket, killing, 5, random.Random(seed), url, path, ref, tmp_path / "cache")

    body = bucket.raw.get_object(Bucket=bucket.name, Key=f"{PREFIX}/{KEY}")["Body"].read()
    found = hashlib.sha256(body).hexdigest()
    print(f"\n{megabytes} MB, seed {seed}: {figures}, sha256 {found}, source {ref.sha256}")
    assert figures.kills == 5
    assert found == ref.sha256
    assert log.find(KEY) is None
    assert bucket.uploads() == 0


def test_killed_five_times_in_a_row_it_ends_with_the_right_bytes(
    bucket: Bucket, log: UploadLog, url: str, tmp_path: Path
) -> None:
    show(40, bucket, log, url, tmp_path, seed=int(os.environ.get("PAGEGATE_TEST_SEED", "0")))
