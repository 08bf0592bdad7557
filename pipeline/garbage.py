"""What nothing needs any more: found, and swept when it is old enough."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from pipeline.audit import Audit, Finding
from pipeline.protocols import MultipartStore
from pipeline.upload import abort_stale

AT_ONCE = 500


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """How much of each kind there was; after a dry run it is still there."""

    objects: int
    points: int
    documents: int
    """Deleted ones of which the last rows went."""
    uploads: int
    events: int


def sweep(audit: Audit, parts: MultipartStore | None, grace_s: float, *, dry: bool) -> Swept:
    """Objects and points that nothing in the ledger names, rows of deleted documents, uploads that nobody went on
    with, and published events; each untouched for `grace_s`. `parts` is the store, if it takes uploads by parts.

    May run beside workers and be killed anywhere. Uploads and events are not counted in a dry run.
    """
    objects = points = 0
    for batch in _pieces(audit.orphan_objects(grace_s)):
        objects += len(batch) if dry else audit.remove(batch, grace_s)
    for batch in _pieces(audit.orphan_points(grace_s)):
        points += len(batch) if dry else audit.remove(batch, grace_s)
    deleted = audit.ledger.audits.deleted(grace_s)
    if dry:
        return Swept(objects=objects, points=points, documents=len(deleted), uploads=0, events=0)
    for document in deleted:
        audit.ledger.audits.forget(document)
    return Swept(
        objects=objects,
        points=points,
        documents=len(deleted),
        uploads=abort_stale(parts, audit.ledger.uploads, grace_s) if parts else 0,
        events=audit.ledger.outbox.prune(grace_s),
    )


def _pieces(findings: Iterable[Finding]) -> Iterator[list[Finding]]:
    """Some at a time: there may be many, and what was found a while ago may be needed now."""
    left = iter(findings)
    while piece := list(itertools.islice(left, AT_ONCE)):
        yield piece
