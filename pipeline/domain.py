"""The records of the pipeline: frozen, keyword-only, small and picklable.

A record that crosses a process carries ids and object keys, never pixels, sessions or clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import PagegateError
from pipeline.metadata import DocumentMetadata, Scope

Floats = npt.NDArray[np.float32]
"""A multivector: shape ``(n_tokens, dim)``, float32."""


class StageName(StrEnum):
    """One small step on one page."""

    RENDER = "render"
    TEXT = "text"
    OCR = "ocr"
    ENCODE = "encode"
    INDEX = "index"


class TaskState(StrEnum):
    """State of a `PageTask` row. Only PENDING and LEASED rows hold a gate back."""

    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    """No longer wanted (another profile was adopted before it was begun)."""


class SubmissionState(StrEnum):
    QUEUED = "queued"
    PROCESSING = "processing"
    SEARCHABLE = "searchable"
    REJECTED = "rejected"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (SubmissionState.SEARCHABLE, SubmissionState.REJECTED, SubmissionState.FAILED)


class BuildState(StrEnum):
    BUILDING = "building"
    ACTIVE = "active"
    STANDBY = "standby"
    RETIRED = "retired"


class VersionBuildState(StrEnum):
    PROCESSING = "processing"
    VALIDATING = "validating"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


class Verdict(StrEnum):
    """What became of a page's text. BLANK is a finding (no ink), not an absence."""

    GOOD = "good"
    GARBLED = "garbled"
    NO_TEXT = "no_text"
    BLANK = "blank"
    UNREADABLE = "unreadable"


class TextSource(StrEnum):
    NATIVE = "native"
    OCR = "ocr"
    NONE = "none"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactRef:
    """An immutable object in the object store: its key, its sha256 (hex) and its size in bytes."""

    key: str
    sha256: str
    size: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EncoderContract:
    """What pages and queries must share to be compared at all.

    `reads` is the artifact role the encoder looks at: ``image`` or ``text``.
    """

    name: str
    version: int
    dim: int
    reads: str
    options: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class IndexBuild:
    """One encoder contract and one collection of points."""

    id: str
    collection: str
    contract: EncoderContract
    contract_digest: str
    state: BuildState


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The options that change artifacts, as the ledger holds them: stage name → options.

    Each stage's options contain its code version, so that new code is a new profile too.
    """

    revision: int
    options: Mapping[str, Mapping[str, Any]]
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    id: str
    document_id: str
    org: str
    source_uri: str
    revision: int
    metadata: DocumentMetadata
    state: SubmissionState
    upload: ArtifactRef | None = None
    """Where the source was uploaded to, if it was: it is read there, and not at `source_uri`."""
    version_id: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    error_stage: str | None = None
    error_page: int | None = None
    superseded_by: int | None = None
    """The later revision that is current instead of this one."""
    attempts: int = 0
    seconds: float | None = None
    """From registration to its end."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VersionDraft:
    """What intake learned of one content of a document."""

    version_id: str
    source: ArtifactRef
    title: str
    page_labels: Sequence[str]
    """One printed label a page; its length is the page count. ``""`` where the file defines none."""
    notes: Mapping[str, Any]
    """Facts worth telling: repaired, attachments, xfa."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PageTask:
    """A leased row: one page in one stage under one fingerprint, with all that its stage needs."""

    id: int
    stage: StageName
    fingerprint: str
    org: str
    document_id: str
    version_id: str
    page_index: int
    page_label: str
    inputs: Mapping[str, ArtifactRef]
    options: Mapping[str, Any]
    about: Mapping[str, Any]
    """For `index`: what the payload says of the document (`DocumentMetadata.about`)."""
    build: IndexBuild | None
    attempts: int

    @property
    def where(self) -> str:
        """How an error message names this page."""
        return f"page {self.page_index} of version {self.version_id}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Rows leased together under one token."""

    token: str
    stage: StageName
    tasks: Sequence[PageTask]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PageResult:
    """What a stage made of one task: artifacts to store (role → bytes and file suffix) and facts, or its failure."""

    task: PageTask
    artifacts: Mapping[str, tuple[bytes, str]] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    error: PagegateError | None = None
    """A `PageError` is charged to the page; any other kind is not."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A finished task: what it wrote and the few facts that later steps decide by."""

    task_id: int
    outputs: Mapping[str, ArtifactRef]
    facts: Mapping[str, Any]
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """A failure of the page itself. Counted; final when `retryable` is false or the attempts are used up."""

    task_id: int
    code: str
    message: str
    retryable: bool
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Deferred:
    """An infrastructure fault: the row goes back, uncharged, to be tried after `delay_s` seconds."""

    task_id: int
    code: str
    message: str
    delay_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InputLost:
    """An input artifact is gone or damaged: the row that wrote it is reopened."""

    task_id: int
    key: str


Outcome = Done | Failed | Deferred | InputLost


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SparseVector:
    """Term ids (unsigned 32 bit, ascending, distinct) and their weights."""

    indices: Sequence[int]
    values: Sequence[float]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class IndexPoint:
    """A page in one collection. The payload is what filters and the gate's read-back look at."""

    id: str
    multivector: Floats
    sparse: SparseVector
    payload: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PointFacts:
    """What reading a point back showed. `sound`: every row finite and not zero."""

    payload: Mapping[str, Any]
    n_tokens: int
    dim: int
    sound: bool
    sparse_terms: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class IndexQuery:
    """A question, and what it may see."""

    scope: Scope
    multivector: Floats
    sparse: SparseVector


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """Two rankings of point ids, best first, each with its own scores (MaxSim sums, BM25 sums)."""

    dense: Sequence[tuple[str, float]]
    sparse: Sequence[tuple[str, float]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PageProof:
    """What the ledger says of one page of a version in one build; the gate reads back whether it is so.

    `failure` is set where the page's chain ended in a failed row; then the rest is unknown.
    """

    page_index: int
    page_label: str
    point_id: str | None = None
    n_tokens: int | None = None
    artifacts: Mapping[str, ArtifactRef] = dataclasses.field(default_factory=dict)
    task_ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Artifact role (or ``point``) → the done row that wrote it, to be reopened when it is gone."""
    verdict: str | None = None
    failure: PageFailure | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PageFailure:
    page_index: int
    stage: str
    code: str
    message: str
    waived: bool = False
    """A person decided that this failure of this page shall not hold the rest back."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateWork:
    """One version in one build, claimed for validation. The result counts only if `epoch` still stands."""

    token: str
    org: str
    document_id: str
    version_id: str
    build: IndexBuild
    epoch: int
    generation: int
    """The document's promotion count when the gate began; its own promotion is the next one."""
    page_count: int
    about: Mapping[str, Any]
    """What the payload of its points has to say of the document."""
    pages: Sequence[PageProof]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateReport:
    """What the gate found. Accepted only if there is neither a failure nor anything missing.

    The pages of `waived` failures are left out of the manifest.
    """

    pages: int
    verdicts: Mapping[str, int]
    failures: Sequence[PageFailure]
    waived: Sequence[PageFailure] = ()
    missing: Sequence[str]
    """What could not be read back, in words."""
    reopen: Sequence[int]
    """The done rows whose artifact or point is gone or wrong."""

    @property
    def accepted(self) -> bool:
        return not self.failures and not self.missing


class GateVerdict(StrEnum):
    """What settling a gate came to."""

    PROMOTED = "promoted"
    ACCEPTED = "accepted"
    """Proved, but not made current: a later revision is, the document is deleted, or the build is not active."""
    REJECTED = "rejected"
    REOPENED = "reopened"
    STALE = "stale"
    """Something changed while the gate was reading: nothing was written, it will be tried again."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServedPage:
    """A line of the manifest, with what a search result shows of it."""

    point_id: str
    org: str
    document_id: str
    version_id: str
    source_uri: str
    title: str
    page_index: int
    page_label: str
    image: ArtifactRef
    text: ArtifactRef
    missing_pages: Sequence[int] = ()
    """Pages of the same version that are not served, by a person's decision."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A page of evidence. `score_label` says what kind of number `score` is."""

    rank: int
    score: float
    score_label: str
    document_id: str
    version_id: str
    source: str
    title: str
    page_index: int
    page_label: str
    text_source: str
    snippet: str
    image_key: str
    missing_pages: Sequence[int] = ()
    """Pages of this document that could not be read and are left out, by a person's decision."""


STALLED_S = 600.0
"""Waiting for longer than most outages last: somebody should look."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Waiver:
    """A person's decision that one failure of one page shall not hold its version back."""

    version_id: str
    page_index: int
    stage: str
    error_code: str
    who: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedObject:
    """An object that a done row, or a version's source, says is in the store. A source has no task."""

    ref: ArtifactRef
    task_id: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedPoint:
    """A point that a done row says is in the index. `served`: it stands in a current manifest."""

    point_id: str
    task_id: int
    build: IndexBuild
    n_tokens: int
    payload: Mapping[str, Any]
    served: bool
    generation: int


class EventKind(StrEnum):
    """What the outbox tells the outside, as the routing key of its message."""

    REGISTERED = "submission.registered"
    SEARCHABLE = "submission.searchable"
    REJECTED = "submission.rejected"
    FAILED = "submission.failed"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """A row of the outbox. `submission` is as it was when this happened."""

    id: int
    kind: EventKind
    submission: Submission
    micros: int
    """When it happened, since the epoch by the ledger's clock."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """What a broker carries. `id` is the same however often it is sent."""

    topic: str
    id: str
    body: bytes


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UploadSession:
    """A source on its way into the object store in parts. `key` is where it will be."""

    key: str
    upload_id: str
    sha256: str
    size: int
    part_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UploadedPart:
    """A part that the object store says it has. Numbers count from 1."""

    number: int
    size: int
    etag: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Work that is put off, on what, and for how long its oldest row has been."""

    stage: str
    code: str
    pages: int
    message: str
    seconds: float

    @property
    def stalled(self) -> bool:
        return self.seconds >= STALLED_S


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Quarantine:
    """Pages that were given up for one reason; `retry` puts them back, `waive` does without them."""

    stage: str
    code: str
    pages: int
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LedgerStatus:
    submissions: Mapping[str, int]
    documents_searchable: int
    pages_searchable: int
    tasks: Mapping[tuple[str, str], int]
    """(stage, state) → rows."""
    rates: Mapping[str, int]
    """Stage → pages finished in the last minute."""
    waiting: Sequence[Waiting]
    quarantined: Sequence[Quarantine]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VersionView:
    version_id: str
    document_id: str
    org: str
    source_uri: str
    sha256: str
    page_count: int
    title: str
    metadata: DocumentMetadata
    notes: Mapping[str, Any]
    current: bool
    gates: Mapping[str, Mapping[str, Any]]
    """Build id → state and report."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StageView:
    stage: str
    state: str
    artifacts: Mapping[str, ArtifactRef]
    facts: Mapping[str, Any]
    error_code: str | None
    error_message: str | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PageView:
    page_index: int
    page_label: str
    stages: Sequence[StageView]
