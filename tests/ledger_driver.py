"""Drives a ledger as intake, the stages and the gate would, without doing any work: for tests of the ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.domain import (
    ArtifactRef,
    Done,
    EncoderContract,
    GateReport,
    GateVerdict,
    GateWork,
    PageFailure,
    PageTask,
    StageName,
    Submission,
    VersionDraft,
    Window,
)
from pipeline.identity import source_key, version_id
from pipeline.metadata import DocumentMetadata
from pipeline.stages import CODE_VERSIONS, STAGES
from pipeline.stores.sql import SqlLedger

LEASE_S = 60.0
WORKER = "worker-1"


class Clock:
    """Microseconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += int(seconds * 1e6)


def contract(version: int = 1) -> EncoderContract:
    return EncoderContract(name="lexical", version=version, dim=4, reads="text", options={})


def options(**changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A profile; ``options(render={"dpi": 200})`` changes one option."""
    return {spec.name.value: {"version": spec.version, **changes.get(spec.name.value, {})} for spec in STAGES}


def ref(*parts: object) -> ArtifactRef:
    name = "/".join(map(str, parts))
    return ArtifactRef(key=name, sha256=hashlib.sha256(name.encode()).hexdigest(), size=len(name))


def open_ledger(url: str, **settings: Any) -> SqlLedger:
    ledger = SqlLedger(url, CODE_VERSIONS, **settings)
    ledger.migrate()
    ledger.registry.found(options(), contract())
    return ledger


def submit(
    ledger: SqlLedger, uri: str = "file:///a.pdf", org: str = "acme", metadata: DocumentMetadata | None = None
) -> Submission:
    return ledger.submissions.submit(org, uri, metadata or DocumentMetadata())


def take_in(ledger: SqlLedger, content: str = "A", pages: int = 3) -> str:
    """Intake of the oldest waiting submission, as if its source held `content`; returns the version's id."""
    claimed = ledger.submissions.claim(LEASE_S, WORKER)
    assert claimed is not None
    token, submission = claimed
    draft = draft_of(submission, content, pages)
    ledger.submissions.accept(token, draft)
    return draft.version_id


def draft_of(submission: Submission, content: str, pages: int) -> VersionDraft:
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    version = version_id(submission.document_id, sha256)
    source = ArtifactRef(key=source_key(submission.document_id, version, sha256), sha256=sha256, size=1)
    labels = [str(page + 1) for page in range(pages)]
    return VersionDraft(version_id=version, source=source, title="A manual", page_labels=labels, notes={})


def done(task: PageTask, *, needs_ocr: bool = False) -> Done:
    """What a stage would have made of a task: artifacts named by what they were made from."""
    made = ref(task.version_id, task.page_index, task.stage, task.fingerprint)
    outputs: dict[StageName, dict[str, ArtifactRef]] = {
        StageName.RENDER: {"image": made, "evidence": made},
        StageName.TEXT: {"text": made},
        StageName.OCR: {"text": made},
        StageName.ENCODE: {"vectors": made},
        StageName.INDEX: {},
    }
    facts = {
        StageName.TEXT: {"needs_ocr": needs_ocr, "verdict": "no_text" if needs_ocr else "good"},
        StageName.OCR: {"needs_ocr": False, "verdict": "no_text"},
        StageName.INDEX: {"n_tokens": 2},
    }
    return Done(task_id=task.id, outputs=outputs[task.stage], facts=facts.get(task.stage, {}), seconds=0.1)


def claim(ledger: SqlLedger, stage: StageName, limit: int = 16, worker: str = WORKER) -> Window:
    window = ledger.tasks.claim(stage, limit, LEASE_S, worker)
    assert window is not None, f"nothing pending in {stage}"
    return window


def finish(ledger: SqlLedger, window: Window, *, ocr_pages: Iterable[int] = ()) -> int:
    pages = set(ocr_pages)
    return ledger.tasks.settle(window.token, [done(task, needs_ocr=task.page_index in pages) for task in window.tasks])


def run_stages(ledger: SqlLedger, *, ocr_pages: Iterable[int] = ()) -> dict[StageName, int]:
    """Do all that is pending, and what follows; returns the number of rows done by stage."""
    counts = dict.fromkeys(StageName, 0)
    pages = set(ocr_pages)
    while any(ledger.tasks.pending(stage) for stage in StageName):
        for stage in StageName:
            window = ledger.tasks.claim(stage, 16, LEASE_S, WORKER)
            if window:
                counts[stage] += finish(ledger, window, ocr_pages=pages)
    return counts


def report_on(work: GateWork) -> GateReport:
    failed: list[PageFailure] = [page.failure for page in work.pages if page.failure]
    failures = [failure for failure in failed if not failure.waived]
    waived = [failure for failure in failed if failure.waived]
    return GateReport(pages=len(work.pages), verdicts={}, failures=failures, waived=waived, missing=[], reopen=[])


def pass_gate(ledger: SqlLedger) -> GateVerdict:
    """The gate of one version, which finds everything there."""
    work = ledger.gates.claim(LEASE_S, WORKER)
    assert work is not None, "no version is ready for its gate"
    return ledger.gates.settle(work, report_on(work))


def publish(ledger: SqlLedger, content: str = "A", *, ocr_pages: Iterable[int] = ()) -> Submission:
    """Submit, take in, process and validate; returns the submission as it ended."""
    submission = submit(ledger)
    take_in(ledger, content)
    run_stages(ledger, ocr_pages=ocr_pages)
    while ledger.gates.pending():
        pass_gate(ledger)
    ended = ledger.submissions.get(submission.id)
    assert ended is not None
    return ended


def current_content(ledger: SqlLedger, document_id: str) -> str | None:
    view = ledger.views.version(document_id, None)
    names = {hashlib.sha256(name.encode()).hexdigest(): name for name in "ABC"}
    return names[view.sha256] if view else None
