"""Do ledger, object store and index agree? What does not is found, explained, and put right."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.batches import batches
from pipeline.domain import ExpectedObject, ExpectedPoint, IndexBuild, PointFacts
from pipeline.failpoints import reached
from pipeline.gate import point_fault
from pipeline.identity import OURS
from pipeline.protocols import Ledger, ObjectStore, VectorIndex

POINTS_AT_ONCE = 64
ORPHAN_GRACE_S = 86_400.0
"""An object that nothing names may be one that a worker has just put, and names in a moment."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing on which the three do not agree. `task_id` is the done row to be reopened, if any can help."""

    kind: str
    """object, source, point, hidden point, orphan object or orphan point."""
    name: str
    """Key of an object or id of a point."""
    words: str
    task_id: int | None = None
    build: IndexBuild | None = None
    generation: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """Looks at everything, once a call. Safe beside workers: what one of them is just writing is no finding."""

    ledger: Ledger
    store: ObjectStore
    index: VectorIndex

    def find(self, grace_s: float = ORPHAN_GRACE_S) -> Iterator[Finding]:
        """All that is missing, wrong, hidden or an orphan. Objects count as orphans when they are older than
        `grace_s`; points at once, since a point's row is there before the point."""
        for version_id in self.ledger.audits.versions():
            objects, points = self.ledger.audits.expected(version_id)
            yield from self._objects(objects)
            yield from self._points(points)
        yield from self.orphan_objects(grace_s)
        yield from self.orphan_points(grace_s)

    def orphan_objects(self, grace_s: float) -> Iterator[Finding]:
        """Objects that nothing in the ledger names. Keys that are none of ours are left alone."""
        ours = (key for key in self.store.keys(older_than_s=grace_s) if OURS.fullmatch(key))
        for ids, group in itertools.groupby(ours, key=_ids):
            keys = list(group)  # listed before the ledger is asked
            kept = self.ledger.audits.kept(*ids, grace_s)
            for key in keys:
                if key not in kept:
                    yield Finding(kind="orphan object", name=key, words="nothing names it")

    def orphan_points(self, grace_s: float) -> Iterator[Finding]:
        """Points that no row writes. The index is listed first: a row is there before its point."""
        for build in self.ledger.registry.builds():
            self.index.create(build.collection, build.contract.dim)
            found = set(self.index.point_ids(build.collection))
            for name in sorted(found - self.ledger.audits.points(build, grace_s)):
                yield Finding(kind="orphan point", name=name, words="no row writes it", build=build)

    def repair(self, findings: Sequence[Finding], grace_s: float = ORPHAN_GRACE_S) -> int:
        """Reopen the rows whose object or point is not as they say, show what is hidden, remove what nothing names.

        Returns how many findings were put right; a lost source is not among them: submit it again.
        """
        reopened = sorted({finding.task_id for finding in findings if finding.task_id is not None})
        for tasks in batches(reopened):
            self.ledger.audits.reopen(tasks)
            reached("fsck.reopened")
        hidden = [finding for finding in findings if finding.kind == "hidden point"]
        for finding in hidden:
            assert finding.build  # noqa: S101 - a point's finding has one
            self.index.promote(finding.build.collection, [finding.name], finding.generation)
        again = sum(finding.task_id is not None for finding in findings)
        return again + len(hidden) + self.remove(findings, grace_s)

    def remove(self, findings: Sequence[Finding], grace_s: float) -> int:
        """Remove those of the findings that are orphans, and still are; returns how many."""
        objects = [finding.name for finding in findings if finding.kind == "orphan object"]
        points: dict[str, list[Finding]] = defaultdict(list)
        for finding in findings:
            if finding.kind == "orphan point" and finding.build:
                points[finding.build.id].append(finding)
        return self._remove_objects(objects, grace_s) + sum(
            self._remove_points(of_build, grace_s) for of_build in points.values()
        )

    def _remove_objects(self, keys: Sequence[str], grace_s: float) -> int:
        """Named by somebody since, or put again and so young again: then it stays."""
        removed = 0
        for ids, group in itertools.groupby(keys, key=_ids):
            kept = self.ledger.audits.kept(*ids, grace_s)
            for key in group:
                if key not in kept and key in set(self.store.keys(prefix=key, older_than_s=grace_s)):
                    self.store.delete(key)
                    reached("gc.object_deleted")
                    removed += 1
        return removed

    def _remove_points(self, orphans: Sequence[Finding], grace_s: float) -> int:
        build = orphans[0].build
        assert build  # noqa: S101 - a point's finding has one
        kept = self.ledger.audits.points(build, grace_s)
        names = [finding.name for finding in orphans if finding.name not in kept]
        for batch in batches(names):
            self.index.delete(build.collection, batch)
            reached("gc.point_deleted")
        return len(names)

    def _objects(self, expected: Sequence[ExpectedObject]) -> Iterator[Finding]:
        for one in expected:
            if not self.store.holds(one.ref):
                kind, advice = ("object", "its row is done again") if one.task_id else ("source", "submit it again")
                yield Finding(
                    kind=kind,
                    name=one.ref.key,
                    words=f"missing, or not what was written: {advice}",
                    task_id=one.task_id,
                )

    def _points(self, expected: Sequence[ExpectedPoint]) -> Iterator[Finding]:
        of_build: dict[str, list[ExpectedPoint]] = defaultdict(list)
        for point in expected:
            of_build[point.build.id].append(point)
        for points in of_build.values():
            build = points[0].build
            self.index.create(build.collection, build.contract.dim)
            for batch in batches(points, POINTS_AT_ONCE):
                facts = self.index.inspect(build.collection, [point.point_id for point in batch])
                for point in batch:
                    yield from _compared(point, facts.get(point.point_id))


def _ids(key: str) -> tuple[str, str]:
    """Of document and version."""
    document, version, _ = key.split("/", 2)
    return document, version


def _compared(point: ExpectedPoint, facts: PointFacts | None) -> Iterator[Finding]:
    common: dict[str, Any] = {"name": point.point_id, "build": point.build, "generation": point.generation}
    shape = (point.n_tokens, point.build.contract.dim)
    fault = "it is missing" if facts is None else point_fault(facts, point.payload, shape)
    if fault:
        yield Finding(kind="point", words=f"{fault}: its row is done again", task_id=point.task_id, **common)
    elif facts and point.served and facts.payload.get("live") == 0:
        yield Finding(kind="hidden point", words="served, but its hint says that it is not", **common)
