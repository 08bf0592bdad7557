"""What the pipeline needs from the outside, as structural types. One contract suite a protocol runs on every
implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pipeline.domain import (
    ArtifactRef,
    Candidates,
    EncoderContract,
    Event,
    ExpectedObject,
    ExpectedPoint,
    Floats,
    GateReport,
    GateVerdict,
    GateWork,
    IndexBuild,
    IndexPoint,
    IndexQuery,
    LedgerStatus,
    Message,
    Outcome,
    PageResult,
    PageTask,
    PageView,
    PointFacts,
    Profile,
    ServedPage,
    SparseVector,
    StageName,
    Submission,
    UploadedPart,
    UploadSession,
    VersionDraft,
    VersionView,
    Waiting,
    Waiver,
    Window,
)
from pipeline.metadata import DocumentMetadata, Scope


class ObjectStore(Protocol):
    """Immutable objects named by ids and content digest.

    A reader sees a whole object or none. Putting an object that is there changes nothing.
    Raises `StoreUnavailable` or `DiskFull` when the store itself fails.
    """

    def put(self, key: str, content: bytes) -> ArtifactRef:
        """Store `content` under `key`; returns its digest and size."""

    def put_stream(self, key: str, stream: BinaryIO, sha256: str) -> ArtifactRef:
        """Store a stream whose digest is known. Raises `SourceChanged` if the bytes have another one."""

    def get(self, ref: ArtifactRef) -> bytes:
        """The object's bytes. Raises `ArtifactLost` if it is absent or its digest is not the recorded one."""

    def fetch(self, ref: ArtifactRef) -> Path:
        """A local file with the object's verified bytes, to be read and not changed. Raises `ArtifactLost`."""

    def holds(self, ref: ArtifactRef) -> bool:
        """Whether the store itself, and not a local copy, has the object with its recorded size and digest."""

    def keys(self, prefix: str = "", older_than_s: float = 0.0) -> Iterator[str]:
        """All keys that begin with `prefix`, in no order; only those last put so long ago."""

    def delete(self, key: str) -> None:
        """Remove an object; no error if it is not there."""

    def close(self) -> None:
        """Release connections and what is held of local copies."""


class VectorIndex(Protocol):
    """Points of pages in collections, each with a multivector ``page``, a sparse vector ``text`` and a payload.

    Writes are durable when they return, and last-write-wins per point id. Reads see all earlier writes.
    Raises `IndexUnavailable` when it does not answer.
    """

    def create(self, collection: str, dim: int) -> None:
        """Make the collection if it is not there."""

    def upsert(self, collection: str, points: Sequence[IndexPoint]) -> None:
        """Write points. Raises `BadVectors` or `TooManyVectors` before anything is written."""

    def inspect(self, collection: str, point_ids: Sequence[str]) -> Mapping[str, PointFacts]:
        """Read points back, vectors included. Absent ids are absent from the answer."""

    def search(self, collection: str, query: IndexQuery, limit: int) -> Candidates:
        """The best `limit` points inside the query's scope by MaxSim and by BM25 (IDF by the index)."""

    def promote(self, collection: str, point_ids: Sequence[str], generation: int) -> None:
        """Hint that these points are served since the document's promotion `generation`.

        Points promoted after it are untouched, so a late call harms nothing.
        """

    def demote(self, collection: str, document_id: str, generation: int) -> None:
        """Hint that the document's points promoted before `generation` are no longer served.

        Points promoted at or after it are untouched, so a late call harms nothing.
        """

    def delete(self, collection: str, point_ids: Sequence[str]) -> None:
        """Remove points; no error if they are not there."""

    def point_ids(self, collection: str) -> Iterator[str]:
        """All ids in the collection, in no order."""

    def close(self) -> None:
        """Flush and release."""


class PageEncoder(Protocol):
    """Pages and questions to multivectors under one contract."""

    contract: EncoderContract

    def encode_pages(self, contents: Sequence[bytes]) -> Sequence[Floats]:
        """One multivector a page, rows of unit length; `contents` are the artifacts of role `contract.reads`.

        A page's result does not depend on its neighbours. Raises `EncodeFailed`.
        """

    def encode_queries(self, questions: Sequence[str]) -> Sequence[Floats]:
        """One multivector a question; the length of a row is its token's weight."""


class SparseEncoder(Protocol):
    """Text to the term weights whose products, times the index's IDF, sum up to BM25."""

    options: Mapping[str, Any]

    def encode_page(self, text: str) -> SparseVector: ...

    def encode_query(self, question: str) -> SparseVector: ...


class OcrEngine(Protocol):
    """Reads a page image."""

    name: str

    def read(self, image: bytes) -> Sequence[tuple[tuple[float, float, float, float], str, float]]:
        """Lines in reading order: box (x0, y0, x1, y1 in image pixels), text, confidence 0–1.

        Raises `OcrFailed`.
        """


class Stage(Protocol):
    """One step on a window of pages. `run_stage` owns claiming, storing and completing."""

    name: StageName

    def process(self, tasks: Sequence[PageTask]) -> Iterable[PageResult]:
        """Yield one result a task, in order, as soon as it is known.

        Raises nothing of a single page: that goes into its result. What it raises concerns the whole window.
        """


class SubmissionQueue(Protocol):
    """Sources on their way to become versions."""

    def submit(
        self,
        org: str,
        source_uri: str,
        metadata: DocumentMetadata,
        submission_id: str | None = None,
        upload: ArtifactRef | None = None,
        announce: bool = True,
    ) -> Submission:
        """Register a source as the next revision of its document. The same `submission_id` again changes nothing.

        `upload` is its content in our object store, where it was uploaded. Unless `announce` is false, the outbox
        tells of it, in the same transaction.
        """

    def document_of(self, org: str, source_uri: str) -> str:
        """The id of the document that a submission of this source would be of."""

    def pending(self) -> bool: ...

    def claim(self, lease_s: float, worker: str) -> tuple[str, Submission] | None:
        """Lease the oldest waiting submission; returns the lease's token with it."""

    def known(self, version_id: str) -> VersionDraft | None:
        """What intake found when this content came first."""

    def accept(self, token: str, draft: VersionDraft) -> None:
        """Make the source a version with pages, and insert their first tasks, in one transaction.

        Content that the document serves already ends the submission at once; content that it served before is
        validated again. Raises `LeaseLost`.
        """

    def fail(self, token: str, code: str, message: str) -> None:
        """End it: this source can never become a version."""

    def defer(self, token: str, code: str, message: str, delay_s: float) -> None:
        """Give it back, uncharged, to be tried after `delay_s`."""


class TaskQueue(Protocol):
    """Rows of pages in stages. A token is proof of a lease; nothing is written without it."""

    def pending(self, stage: StageName) -> bool:
        """Whether a claim would find something. Takes no lock."""

    def claim(self, stage: StageName, limit: int, lease_s: float, worker: str) -> Window | None:
        """Lease up to `limit` rows, in the queue's order; fewer when one of them was in a lost window."""

    def renew(self, token: str, lease_s: float) -> bool:
        """Lease for `lease_s` from now; False if the lease was taken over."""

    def settle(self, token: str, outcomes: Sequence[Outcome]) -> int:
        """Write the outcomes of rows still held, and insert what follows from them, in one transaction.

        Returns how many were held: the others had been taken over and are left alone. Settling again the same
        is harmless.
        """

    def release(self, worker: str | None) -> int:
        """Give back, uncharged, what `worker` (None: anybody) holds."""

    def abandon(self, worker: str) -> int:
        """Take back what a dead worker held: its window is halved, a row held alone is charged an attempt."""


class GateQueue(Protocol):
    """Versions of which everything is done or failed, waiting to be proved."""

    def pending(self) -> bool: ...

    def claim(self, lease_s: float, worker: str) -> GateWork | None: ...

    def renew(self, token: str, lease_s: float) -> bool: ...

    def settle(self, work: GateWork, report: GateReport) -> GateVerdict:
        """In one transaction: the manifest, the version's state, the document's current version.

        Writes nothing (STALE) if the epoch or the document changed since the claim.
        """


class Registry(Protocol):
    """What the installation has agreed on."""

    def found(self, options: Mapping[str, Mapping[str, Any]], contract: EncoderContract) -> None:
        """Make the first profile and build of an empty ledger; otherwise change nothing."""

    def profile(self) -> Profile | None: ...

    def adopt(self, options: Mapping[str, Mapping[str, Any]]) -> Profile:
        """Put these options in force as a new revision; the sweeper then plans all served pages anew."""

    def builds(self) -> Sequence[IndexBuild]:
        """The builds that are written: building, active, standby."""

    def active_build(self) -> IndexBuild | None: ...


class Outbox(Protocol):
    """What is to be told to the outside, written in the transaction that made it so."""

    def waiting(self) -> int:
        """How many events are not yet published."""

    def claim(self, limit: int, hold_s: float) -> Sequence[Event]:
        """The oldest ones not yet published; other relays do not see them for `hold_s`."""

    def published(self, ids: Sequence[int]) -> None:
        """The broker has confirmed them."""

    def defer(self, ids: Sequence[int], code: str, message: str, delay_s: float) -> None:
        """The broker has not: they wait for it, visibly."""

    def prune(self, older_than_s: float) -> int:
        """Forget those published longer ago; returns how many."""


class Decisions(Protocol):
    """What a person decides about documents; each is one transaction. Raises `NotFound`.

    `name` is the id of a submission, document or version, or the URI of a source, of that org.
    """

    def delete(self, org: str, name: str) -> Sequence[str]:
        """Tombstone the document: gone from search at once, nothing of it is done any more. Returns its ids."""

    def retry(self, org: str, name: str) -> int:
        """Put back what failed, with all its attempts; returns how many pages and sources."""

    def waive(self, org: str, name: str, page_index: int, who: str, why: str) -> Waiver:
        """Let the version pass without this page. Raises `ConfigurationError` if the page has not failed."""


class Audits(Protocol):
    """What the ledger says is in the object store and in the index."""

    def versions(self) -> Iterator[str]:
        """Ids of all versions of documents that are not deleted."""

    def expected(self, version_id: str) -> tuple[Sequence[ExpectedObject], Sequence[ExpectedPoint]]:
        """What the done rows of a version, and its source, say is there."""

    def kept(self, document_id: str, version_id: str, grace_s: float) -> Set[str]:
        """Keys of this version that something in the ledger names; those of a document that was deleted longer
        than `grace_s` ago are named by nothing."""

    def points(self, build: IndexBuild, grace_s: float) -> Set[str]:
        """Ids of all points that rows of this build write or have written, as `kept`."""

    def reopen(self, task_ids: Sequence[int]) -> int:
        """Do these done rows again; returns how many were still done."""

    def deleted(self, grace_s: float) -> Sequence[str]:
        """Documents deleted longer ago of which there are still rows."""

    def forget(self, document_id: str) -> None:
        """Remove the rows of a deleted document, all but its tombstone and its submissions."""


class UploadLog(Protocol):
    """Sessions of uploads by parts, so that another process can go on with them. Never the proof of a part: the
    object store is asked what it has."""

    def find(self, key: str) -> UploadSession | None: ...

    def begin(self, session: UploadSession) -> None:
        """Note a session instead of any earlier one of its key."""

    def note(self, session: UploadSession, part: UploadedPart) -> None:
        """Note a part that was sent, with its ETag."""

    def parts(self, session: UploadSession) -> Mapping[int, str]:
        """Part number → ETag, as noted."""

    def forget(self, session: UploadSession) -> None:
        """It was completed, aborted or has expired. Nothing happens if another session of the key was begun."""

    def stale(self, older_than_s: float) -> Sequence[UploadSession]:
        """Sessions in which nothing was noted for so long."""


class MultipartStore(Protocol):
    """An object store that takes an object in parts. Raises `StoreUnavailable`."""

    part_bytes: int
    """The smallest size of a part: an object of more than 10,000 such parts needs larger ones."""

    def put_stream(self, key: str, stream: BinaryIO, sha256: str) -> ArtifactRef:
        """See `ObjectStore.put_stream`: for what is smaller than a part."""

    def begin_upload(self, ref: ArtifactRef) -> str:
        """Returns the id of the upload of an object of this key and digest."""

    def uploaded_parts(self, key: str, upload_id: str) -> Sequence[UploadedPart]:
        """What the store has of it, by number. Raises `UploadGone`."""

    def send_part(self, key: str, upload_id: str, number: int, content: bytes) -> UploadedPart:
        """Raises `UploadGone`."""

    def complete_upload(self, ref: ArtifactRef, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        """Make the object of its parts. Raises `UploadGone`."""

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Drop its parts; no error if it is not there."""

    def open_uploads(self, older_than_s: float) -> Iterator[tuple[str, str]]:
        """Key and id of uploads begun longer ago and neither completed nor aborted."""

    def holds(self, ref: ArtifactRef) -> bool:
        """Whether the object is there with its recorded size and digest."""


class RemoteSources(Protocol):
    """Sources that are named by a URI and lie elsewhere. Raises `SourceMissing`, `StoreUnavailable`."""

    def fetch(self, uri: str, limit_bytes: int) -> AbstractContextManager[Path]:
        """A local copy, for as long as the context lasts. Raises `FileTooLarge`, `DiskFull`."""

    def list(self, uri: str) -> Iterator[str]:
        """The URIs of the PDFs below a URI that ends with ``/``; a URI that names one object is its own answer."""


class Broker(Protocol):
    """Brings submissions in and carries completions out. It holds nothing that would be missed.

    Not to be shared between threads. Raises `BrokerUnavailable`; a later call connects anew.
    """

    def publish(self, messages: Sequence[Message]) -> None:
        """Returns when the broker has confirmed that it keeps all of them. Sending one again is harmless."""

    def consume(self, handle: Callable[[Message], None], stopping: Callable[[], bool]) -> None:
        """Hand over submissions' messages, one at a time, until `stopping`.

        A message is acknowledged when `handle` has returned. If that raises `MalformedMessage`, the message goes to
        the dead letters with the reason; if it raises an `InfrastructureError`, the message stays unacknowledged and
        is handed over again after a pause.
        """

    def close(self) -> None: ...


class LedgerViews(Protocol):
    """Read-only questions."""

    def idle(self) -> bool:
        """Whether nothing is queued, open or unvalidated."""

    def status(self, org: str | None) -> LedgerStatus: ...

    def waiting(self, version_id: str) -> Sequence[Waiting]:
        """What pages of this version wait for."""

    def progress(self, version_ids: Sequence[str]) -> Mapping[tuple[str, str], int]:
        """Rows by (stage, state) of these versions."""

    def submissions(self, ids: Sequence[str]) -> Sequence[Submission]: ...

    def submissions_of(self, name: str, org: str | None) -> Sequence[Submission]:
        """The submission of that id, or all of the document of that id, oldest first."""

    def version(self, version_id: str, org: str | None) -> VersionView | None:
        """A version by its id, or by that of its submission or of the document whose current one it is."""

    def pages(self, version_id: str) -> Sequence[PageView]: ...

    def served(self, build: IndexBuild, scope: Scope, point_ids: Sequence[str]) -> Mapping[str, ServedPage]:
        """Those of the points that a question of this scope may be answered with: in the manifest of their
        document's current version, or of the one in force on the scope's day."""

    def manifest(self, version_id: str, build_id: str) -> Sequence[tuple[int, str, ArtifactRef, ArtifactRef]]:
        """Page index, point id, image and text of each served page, in page order."""


class Ledger(Protocol):
    """All that must survive. Raises `LedgerUnavailable` when the database does not answer."""

    @property
    def submissions(self) -> SubmissionQueue: ...
    @property
    def tasks(self) -> TaskQueue: ...
    @property
    def gates(self) -> GateQueue: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def decisions(self) -> Decisions: ...
    @property
    def audits(self) -> Audits: ...
    @property
    def outbox(self) -> Outbox: ...
    @property
    def uploads(self) -> UploadLog: ...
    @property
    def views(self) -> LedgerViews: ...

    def migrate(self) -> None:
        """Bring the schema up to this code's, one process at a time; nothing happens if it is."""

    def check_schema(self) -> None:
        """Raises `ConfigurationError` unless the schema is this code's."""

    def sweep(self) -> int:
        """Find what was lost and bring it back; returns how many rows. Cheap when there is nothing."""

    def release(self, worker: str | None) -> int:
        """Give back, uncharged, all that `worker` (None: anybody) holds."""

    def abandon(self, worker: str) -> int:
        """Take back at once what a worker known to be dead held."""

    def close(self) -> None: ...
