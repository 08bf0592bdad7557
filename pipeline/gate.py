"""Proof that a version is whole, by reading it back; and the flip that makes it searchable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.batches import batches
from pipeline.domain import GateReport, GateVerdict, GateWork, PageFailure, PageProof, PointFacts
from pipeline.errors import ArtifactLost, LeaseLost
from pipeline.failpoints import reached
from pipeline.payload import payload_of
from pipeline.protocols import Ledger, ObjectStore, VectorIndex

BATCH = 64
"""Pages read back between two renewals of the gate's lease."""

Missing = tuple[str, int]
"""What could not be read back, in words, and the row that wrote it."""


def run_gate(ledger: Ledger, store: ObjectStore, index: VectorIndex, lease_s: float, worker: str) -> GateVerdict | None:
    """Validate one version that has nothing left to do; None if there is none.

    The manifest, the version's state and the document's current version change in one transaction, and only if
    nothing changed while this was reading. The live hints in the index are set before and cleared after it: a
    crash between leaves hints that show too much, which search checks against the manifest anyway.
    """
    work = ledger.gates.claim(lease_s, worker)
    if work is None:
        return None
    reached("gate.claimed")
    try:
        report = _validate(work, ledger, store, index, lease_s)
    except LeaseLost:
        return GateVerdict.STALE
    generation = work.generation + 1
    if report.accepted:
        point_ids = [proof.point_id for proof in work.pages if proof.point_id]
        index.promote(work.build.collection, point_ids, generation)
        reached("gate.promoted")
    verdict = ledger.gates.settle(work, report)
    reached("gate.settled")
    if verdict == GateVerdict.PROMOTED:
        index.demote(work.build.collection, work.document_id, generation)
        reached("gate.demoted")
    return verdict


def _validate(work: GateWork, ledger: Ledger, store: ObjectStore, index: VectorIndex, lease_s: float) -> GateReport:
    failed = [proof.failure for proof in work.pages if proof.failure]
    waived = [failure for failure in failed if failure.waived]
    failures = [*_incomplete(work), *(failure for failure in failed if not failure.waived)]
    if waived and len(waived) == len(work.pages):
        failures = waived  # nothing would be left to be found
    missing: list[Missing] = []
    if not failures:
        for batch in batches([proof for proof in work.pages if proof.point_id], BATCH):
            missing += _read_back(work, batch, store, index)
            reached("gate.read_back")
            if not ledger.gates.renew(work.token, lease_s):
                raise LeaseLost(f"the gate of version {work.version_id} was taken over")
            reached("gate.renewed")
    return GateReport(
        pages=len(work.pages),
        verdicts=dict(Counter(proof.verdict for proof in work.pages if proof.verdict)),
        failures=failures,
        waived=waived,
        missing=[words for words, _ in missing],
        reopen=sorted({task for _, task in missing}),
    )


def _incomplete(work: GateWork) -> Iterator[PageFailure]:
    """Pages 0..n-1 must be there, each once."""
    indices = [proof.page_index for proof in work.pages]
    for page_index in sorted(set(range(work.page_count)) ^ set(indices)):
        message = f"the version has {work.page_count} pages, but page {page_index} is not one of those worked on"
        yield PageFailure(page_index=page_index, stage="gate", code="page_missing", message=message)


def _read_back(
    work: GateWork, proofs: Sequence[PageProof], store: ObjectStore, index: VectorIndex
) -> Iterator[Missing]:
    index.create(work.build.collection, work.build.contract.dim)
    points = index.inspect(work.build.collection, [proof.point_id for proof in proofs if proof.point_id])
    for proof in proofs:
        fault = _point_fault(work, proof, points.get(proof.point_id or ""))
        if fault:
            yield f"page {proof.page_index}: {fault}", proof.task_ids["point"]
        for role, ref in proof.artifacts.items():
            try:
                store.get(ref)
            except ArtifactLost as lost:
                yield f"page {proof.page_index}: {lost.message}", proof.task_ids[role]


def _point_fault(work: GateWork, proof: PageProof, facts: PointFacts | None) -> str | None:
    if facts is None:
        return f"its point {proof.point_id} is not in the index"
    payload = payload_of(
        org=work.org,
        document_id=work.document_id,
        version_id=work.version_id,
        page_index=proof.page_index,
        page_label=proof.page_label,
        build=work.build,
        about=work.about,
    )
    return point_fault(facts, payload, (proof.n_tokens, work.build.contract.dim))


def point_fault(facts: PointFacts, payload: Mapping[str, Any], shape: tuple[int | None, int]) -> str | None:
    """What is wrong with a point that was read back, or None; `shape` is that of its multivector."""
    wrong = [name for name, value in payload.items() if facts.payload.get(name) != value]
    if wrong:
        return f"its point has another {', '.join(wrong)}"
    if (facts.n_tokens, facts.dim) != shape:
        return f"its point has vectors of shape ({facts.n_tokens}, {facts.dim}), not {shape}"
    if not facts.sound:
        return "its point has rows that are zero or not finite"
    if not facts.sparse_terms:
        return "its point has no sparse vector"
    return None
