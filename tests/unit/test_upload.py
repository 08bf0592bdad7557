"""Uploads under random faults, on a store and a log in memory: they end with the right bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from pipeline.domain import ArtifactRef, UploadedPart, UploadSession
from pipeline.errors import StoreUnavailable, UploadGone
from pipeline.upload import abort_stale, upload

CONTENT = bytes(range(23))
PART = 4
KEY = "key"
REF = ArtifactRef(key=KEY, sha256=hashlib.sha256(CONTENT).hexdigest(), size=len(CONTENT))


OTHERS = ("another", "another's begin", "another's part")
"""What another process may do meanwhile."""


class Killed(BaseException):
    """The process is no more."""


class MemoryLog:
    """`UploadLog`."""

    def __init__(self, disturb: Callable[[], None]) -> None:
        self._disturb = disturb
        self.sessions: dict[str, UploadSession] = {}
        self.noted: dict[str, dict[int, str]] = {}

    def find(self, key: str) -> UploadSession | None:
        return self.sessions.get(key)

    def begin(self, session: UploadSession) -> None:
        self._disturb()
        self.sessions[session.key], self.noted[session.key] = session, {}
        self._disturb()

    def note(self, session: UploadSession, part: UploadedPart) -> None:
        self._disturb()
        if self.sessions.get(session.key) == session:
            self.noted[session.key][part.number] = part.etag
        self._disturb()

    def parts(self, session: UploadSession) -> dict[int, str]:
        return dict(self.noted[session.key]) if self.sessions.get(session.key) == session else {}

    def forget(self, session: UploadSession) -> None:
        self._disturb()
        if self.sessions.get(session.key) == session:
            del self.sessions[session.key]

    def stale(self, older_than_s: float) -> list[UploadSession]:
        return list(self.sessions.values())


class MemoryStore:
    """`MultipartStore` in which each sending of a part has an ETag of its own, as with encryption by the server."""

    part_bytes = PART

    def __init__(self, disturb: Callable[[], None]) -> None:
        self._disturb = disturb
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.uploads: dict[str, tuple[ArtifactRef, dict[int, tuple[bytes, str]]]] = {}
        self.begun = self.sent = 0

    def put_stream(self, key: str, stream: BinaryIO, sha256: str) -> ArtifactRef:
        raise AssertionError("the file is larger than a part")

    def begin_upload(self, ref: ArtifactRef) -> str:
        self._disturb()
        self.begun += 1
        self.uploads[str(self.begun)] = ref, {}
        self._disturb()
        return str(self.begun)

    def uploaded_parts(self, key: str, upload_id: str) -> list[UploadedPart]:
        self._disturb()
        parts = self._parts(upload_id)
        return [UploadedPart(number=n, size=len(parts[n][0]), etag=parts[n][1]) for n in sorted(parts)]

    def send_part(self, key: str, upload_id: str, number: int, content: bytes) -> UploadedPart:
        self._disturb()
        self.sent += 1
        self._parts(upload_id)[number] = content, f"etag {self.sent}"
        part = UploadedPart(number=number, size=len(content), etag=f"etag {self.sent}")
        self._disturb()
        return part

    def complete_upload(self, ref: ArtifactRef, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        self._disturb()
        held = self._parts(upload_id)
        if any(part.etag != held.get(part.number, (b"", "absent"))[1] for part in parts):
            raise StoreUnavailable("InvalidPart")
        whole = b"".join(held[part.number][0] for part in parts)
        assert whole == CONTENT
        self.objects[ref.key] = whole, self.uploads.pop(upload_id)[0].sha256
        self._disturb()

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._disturb()
        self.uploads.pop(upload_id, None)
        self._disturb()

    def open_uploads(self, older_than_s: float) -> Iterator[tuple[str, str]]:
        return iter([(ref.key, upload_id) for upload_id, (ref, _) in self.uploads.items()])

    def holds(self, ref: ArtifactRef) -> bool:
        self._disturb()
        content, sha256 = self.objects.get(ref.key, (b"", ""))
        return (len(content), sha256) == (ref.size, ref.sha256)

    def _parts(self, upload_id: str) -> dict[int, tuple[bytes, str]]:
        if upload_id not in self.uploads:
            raise UploadGone("it is gone")
        return self.uploads[upload_id][1]


@dataclasses.dataclass
class Misfortune:
    """Now and then something happens, once `bound`; never two at once."""

    chance: random.Random
    path: Path
    kinds: Sequence[str]
    share: float
    busy: bool = True
    store: MemoryStore | None = None
    log: MemoryLog | None = None

    def __call__(self) -> None:
        if self.busy or self.chance.random() > self.share:
            return
        self.busy = True
        try:
            self._strike(self.chance.choice(self.kinds))
        finally:
            self.busy = False

    def _strike(self, kind: str) -> None:
        assert self.store
        assert self.log
        match kind:
            case "kill":
                raise Killed
            case "unavailable":
                raise StoreUnavailable("it does not answer")
            case "expire":
                self.store.uploads.clear()
            case "lose":
                for _, parts in self.store.uploads.values():
                    parts.pop(1, None)
            case "sweep":
                abort_stale(self.store, self.log, 0)
            case "another":
                upload(self.path, REF, self.store, self.log)
            case "another's begin":
                upload_id = self.store.begin_upload(REF)
                session = UploadSession(key=KEY, upload_id=upload_id, sha256=REF.sha256, size=REF.size, part_bytes=PART)
                self.log.begin(session)
            case "another's part" if KEY in self.log.sessions:
                session = self.log.sessions[KEY]
                if session.upload_id in self.store.uploads:
                    part = self.store.send_part(KEY, session.upload_id, 2, CONTENT[PART : 2 * PART])
                    self.log.note(session, part)


def unlucky(tmp_path: Path, seed: int, kinds: Sequence[str], share: float) -> tuple[MemoryStore, MemoryLog, Path, int]:
    """Upload until it ends; returns how many calls that took."""
    path = tmp_path / "source.pdf"
    path.write_bytes(CONTENT)
    misfortune = Misfortune(random.Random(seed), path, kinds, share)
    store, log = MemoryStore(misfortune), MemoryLog(misfortune)
    misfortune.store, misfortune.log, misfortune.busy = store, log, False
    for calls in range(1, 1_000):
        try:
            upload(path, REF, store, log)
        except (Killed, StoreUnavailable):
            continue
        misfortune.busy = True
        return store, log, path, calls
    raise AssertionError("it does not end")


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_it_ends_with_the_right_bytes(tmp_path: Path, seed: int) -> None:
    kinds = ("kill", "unavailable", "expire", "lose", "sweep", *OTHERS)

    store, log, _, _ = unlucky(tmp_path, seed, kinds, share=0.15)

    assert store.objects == {KEY: (CONTENT, REF.sha256)}
    abort_stale(store, log, 0)
    assert not store.uploads
    assert not log.sessions


@pytest.mark.parametrize("seed", range(50))
def test_while_nothing_expires_each_part_is_sent_once(tmp_path: Path, seed: int) -> None:
    """It was sent when it arrived, whatever became of the answer. Ids of uploads may be lost, with no part in them."""
    store, log, _, _ = unlucky(tmp_path, seed, ("kill", "unavailable"), share=0.2)

    assert store.objects == {KEY: (CONTENT, REF.sha256)}
    assert store.sent == -(-len(CONTENT) // PART)
    assert log.sessions == {}


def test_the_misfortunes_do_happen(tmp_path: Path) -> None:
    assert sum(unlucky(tmp_path, seed, ("kill",), share=0.2)[3] > 1 for seed in range(20)) > 10
