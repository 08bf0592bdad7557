"""A local file becomes an object of the store, part by part; what was sent before an interruption is not sent again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from pipeline.domain import ArtifactRef, UploadedPart, UploadSession
from pipeline.errors import PagegateError, SourceChanged, SourceMissing, StoreUnavailable, UploadGone
from pipeline.failpoints import reached
from pipeline.protocols import MultipartStore, UploadLog

Progress = Callable[[int], None]
"""Told how many bytes of the file the store has, whenever that changes."""

MAX_PARTS = 10_000
"""S3 takes no more of them in one object."""

MIB = 1 << 20
CHUNK = MIB

ATTEMPTS = 5
"""How often an upload that the store no longer knows, or does not complete, is tried again or begun anew."""


def upload(
    path: Path, ref: ArtifactRef, store: MultipartStore, log: UploadLog, on_progress: Progress | None = None
) -> None:
    """The store holds `ref`, the content of `path`, when this returns; it may be called again after any end.

    It goes on with the session that `log` has of the key, from the parts that the store says it has: a part is kept
    if its size is right and its ETag is the one that was noted, or none was, because its answer was lost. A
    completion whose answer was lost is settled by looking at the object; a session that the store no longer knows
    is begun anew. Several processes may upload the same file at once.

    No part of other bytes is ever sent: the file's digest is compared with the ref's before, part by part, and each
    part's with that once more when it is read to be sent. So whatever a session has, sent by whomever, is a part of
    that content, and no mixture of two can be completed. The object is believed by size and noted digest, never by
    its ETag; intake reads its bytes back and compares their digest before they become a version.

    Raises `SourceChanged` (the session is aborted) or `SourceMissing` if the file is not that content any more,
    `StoreUnavailable` if the store or the file's disk fails: what was sent is kept for the next call.
    """
    progress = on_progress or _unheard
    if not store.holds(ref):
        if ref.size < store.part_bytes:
            with _readable(path), path.open("rb") as stream:
                store.put_stream(ref.key, stream, ref.sha256)
        else:
            _Upload(path=path, ref=ref, store=store, log=log, progress=progress).run()
    left = log.find(ref.key)
    if left:
        _abort(left, store, log)
    progress(ref.size)


def abort_stale(store: MultipartStore, log: UploadLog, older_than_s: float) -> int:
    """Abort the sessions in which nothing was noted for that long, and what the store has open for longer and no
    session names: a process died before it noted one, or while it sent a stream. Returns how many.

    An upload that was only slow begins anew. Raises `StoreUnavailable`.
    """
    stale = log.stale(older_than_s)
    for session in stale:
        _abort(session, store, log)
    nameless = [found for found in store.open_uploads(older_than_s) if not _is_named(log, *found)]
    for key, upload_id in nameless:
        store.abort_upload(key, upload_id)
    return len(stale) + len(nameless)


def part_size(size: int, least: int) -> int:
    """Of the parts of an object of `size` bytes: `least`, or as many whole MiB as make at most `MAX_PARTS` of it."""
    if size <= least * MAX_PARTS:
        return least
    return -(-size // (MAX_PARTS * MIB)) * MIB


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Upload:
    """One file on its way."""

    path: Path
    ref: ArtifactRef
    store: MultipartStore
    log: UploadLog
    progress: Progress
    digests: dict[int, list[bytes]] = dataclasses.field(default_factory=dict)
    """Size of parts → what each part of the file has to be; filled when a part is sent."""

    def run(self) -> None:
        failure: PagegateError | None = None
        for _ in range(ATTEMPTS):
            session = self._session()
            failure = self._attempt(session)
            if self.store.holds(self.ref):
                self.log.forget(session)
                reached("upload.forgotten")
                return
        raise StoreUnavailable(
            f"{self.path} could not be uploaded to {self.ref.key} in {ATTEMPTS} attempts: "
            f"{failure.message if failure else 'the object is not there after it was completed'}"
        ) from failure

    def _session(self) -> UploadSession:
        """The one that was begun before, by whomever, or a new one."""
        known = self.log.find(self.ref.key)
        if known and (known.sha256, known.size) == (self.ref.sha256, self.ref.size):
            return known
        if known:
            _abort(known, self.store, self.log)
        session = UploadSession(
            key=self.ref.key,
            upload_id=self.store.begin_upload(self.ref),
            sha256=self.ref.sha256,
            size=self.ref.size,
            part_bytes=part_size(self.ref.size, self.store.part_bytes),
        )
        reached("upload.begun")
        self.log.begin(session)
        reached("upload.noted")
        return session

    def _attempt(self, session: UploadSession) -> PagegateError | None:
        """Send what is missing and complete; returns why that may not have come to its end."""
        try:
            self._send_missing(session)
            return self._complete(session)
        except UploadGone as gone:
            self.log.forget(session)
            return gone
        except SourceChanged:
            _abort(session, self.store, self.log)
            raise

    def _send_missing(self, session: UploadSession) -> None:
        kept = self._kept(session)
        done = sum(part.size for part in kept)
        self.progress(done)
        missing = _numbers(session) - {part.number for part in kept}
        for number in sorted(missing):
            content = self._read(session, number)
            part = self.store.send_part(session.key, session.upload_id, number, content)
            reached("upload.part_sent")
            self.log.note(session, part)
            reached("upload.part_noted")
            done += len(content)
            self.progress(done)

    def _complete(self, session: UploadSession) -> StoreUnavailable | None:
        """Of what the store has now: another process may have sent some parts again."""
        parts = self._kept(session)
        if len(parts) < len(_numbers(session)):
            return StoreUnavailable(f"the object store lost a part of {session.key} that it had taken")
        try:
            self.store.complete_upload(self.ref, session.upload_id, parts)
        except StoreUnavailable as error:
            return error
        reached("upload.completed")
        return None

    def _kept(self, session: UploadSession) -> list[UploadedPart]:
        """The parts that need not be sent, each of them noted."""
        noted = self.log.parts(session)
        kept = []
        for part in self.store.uploaded_parts(session.key, session.upload_id):
            if part.size == _length(session, part.number) and part.etag == noted.get(part.number, part.etag):
                kept.append(part)
                if part.number not in noted:
                    self.log.note(session, part)
        return kept

    def _read(self, session: UploadSession, number: int) -> bytes:
        with _readable(self.path), self.path.open("rb") as stream:
            stream.seek((number - 1) * session.part_bytes)
            content = stream.read(_length(session, number))
        if session.part_bytes not in self.digests:
            self.digests[session.part_bytes] = self._digest(session.part_bytes)
        if hashlib.sha256(content).digest() != self.digests[session.part_bytes][number - 1]:
            raise _changed(self.path, self.ref)
        return content

    def _digest(self, size: int) -> list[bytes]:
        """Of the file's parts. Raises `SourceChanged` unless the whole is the ref's content."""
        whole, parts = hashlib.sha256(), []
        with _readable(self.path), self.path.open("rb") as stream:
            while found := _digest_part(stream, size, whole.update):
                parts.append(found)
        if whole.hexdigest() != self.ref.sha256:
            raise _changed(self.path, self.ref)
        return parts


def _abort(session: UploadSession, store: MultipartStore, log: UploadLog) -> None:
    store.abort_upload(session.key, session.upload_id)
    log.forget(session)


def _is_named(log: UploadLog, key: str, upload_id: str) -> bool:
    session = log.find(key)
    return session is not None and session.upload_id == upload_id


def _numbers(session: UploadSession) -> set[int]:
    return set(range(1, -(-session.size // session.part_bytes) + 1))


def _length(session: UploadSession, number: int) -> int:
    """Of a part; 0 or less for one that there should not be."""
    return min(session.part_bytes, session.size - (number - 1) * session.part_bytes)


def _digest_part(stream: BinaryIO, size: int, also: Callable[[bytes], None]) -> bytes | None:
    """The digest of the next `size` bytes, read a chunk at a time; None at the end."""
    part, missing = hashlib.sha256(), size
    while missing and (chunk := stream.read(min(CHUNK, missing))):
        part.update(chunk)
        also(chunk)
        missing -= len(chunk)
    return part.digest() if missing < size else None


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise SourceMissing(f"{path} is not there: put the file back and submit it again") from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from error


def _changed(path: Path, ref: ArtifactRef) -> SourceChanged:
    return SourceChanged(f"{path} changed while it was uploaded to {ref.key}: submit it again", key=ref.key)


def _unheard(_done: int) -> None: ...
