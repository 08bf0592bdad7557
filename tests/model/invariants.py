"""What has to hold after every effect, and what must not have changed."""

from __future__ import annotations

import datetime
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.domain import ArtifactRef, IndexQuery, ServedPage, SubmissionState, TaskState
from pipeline.metadata import FOR_EVER, DocumentMetadata, Scope
from tests.model.making import CONTENT_OF, DPI, PAGES, OneTerm, lines, undisturbed
from tests.model.workers import Worker
from tests.model.world import SHOWN, Dump, Row, World

ORGS = ("a", "b")
LABEL = "x"
DAY = datetime.date(2020, 1, 1)
DAYS = (5, 15, 25, 35)
"""On which a search `as_of` is asked, counted from `DAY`; metadata name days between them."""
CHARGED = {"worker_crashed", "page_broken", "page_size"}
OPEN = (SubmissionState.QUEUED, SubmissionState.PROCESSING)


class Invariants:
    """Looks at the world after every effect, and compares it with how it was before."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before = world.dump()
        self._looked: object = None
        self._windows: dict[str, int] = {}
        """Token → rows that were leased together under it."""
        self.deleted: set[str] = set()
        """Documents, as the test itself knows it."""

    def holds(self, worker: Worker) -> bool:
        """Whether the worker has a lease."""
        dump = self._world.dump()
        return (
            any(row["worker"] == worker.name and row["state"] == "leased" for row in dump["page_tasks"].values())
            or any(row["worker"] == worker.name for row in dump["version_builds"].values())
            or any(row["worker"] == worker.name and row["state"] == "queued" for row in dump["submissions"].values())
        )

    def check(self, rule: str = "", late: Worker | None = None) -> None:
        """`late`: the worker that did it had no lease any more. `rule`: the decision that was taken."""
        before, now = self._before, self._world.dump()
        if now is not before:
            self._tasks(before, now)
            self._submissions(before, now, rule)
            self._currents(before, now)
            if late:
                self._nothing_done_late(before, now)
            self._before = now
        looked = self._world.store.removals, self._world.index.changes, [now[table] for table in SHOWN]
        if looked != self._looked:
            self._served(now)
            self._looked = looked

    def nothing_lost(self) -> None:
        """After a repair, all that is served is there again."""
        self._world.lost = set()
        self._all_there(self._world.dump())

    # What was, and is

    def _tasks(self, before: Dump, now: Dump) -> None:
        epochs = {key: row["epoch"] for key, row in before["version_builds"].items()}
        grown = {key[0] for key, row in now["version_builds"].items() if row["epoch"] > epochs.get(key, -1)}
        for id, old in before["page_tasks"].items():
            new = now["page_tasks"].get(id)
            if new is None:
                document = before["versions"][old["version_id"]]["document_id"]
                assert document in self.deleted, f"row {id} of a living document is gone"
                continue
            if old["state"] == TaskState.DONE and new["state"] == TaskState.DONE:
                same = old["outputs"] == new["outputs"] and old["facts"] == new["facts"]
                assert same, f"done row {id} has other outputs"
            elif old["state"] == TaskState.DONE:
                assert old["version_id"] in grown, f"done row {id} became {new['state']}, but its epoch stayed"
            if new["attempts"] > old["attempts"]:
                self._charge(old, new)
        leased = [row["token"] for row in now["page_tasks"].values() if row["state"] == TaskState.LEASED]
        for token, size in Counter(leased).items():
            self._windows[token] = max(size, self._windows.get(token, size))

    def _charge(self, old: Row, new: Row) -> None:
        assert new["attempts"] == old["attempts"] + 1
        assert new["error_code"] in CHARGED, f"charged for {new['error_code']}"
        if new["error_code"] == "worker_crashed":
            size = self._windows.get(old["token"], 1)
            assert size == 1, f"charged for a worker that died with {size} pages"

    def _submissions(self, before: Dump, now: Dump, rule: str) -> None:
        told = {(row["submission_id"], row["kind"]) for row in now["outbox"].values()}
        for id, old in before["submissions"].items():
            new = now["submissions"].get(id)
            assert new, f"submission {id} vanished"
            change = old["state"], new["state"]
            if old["state"] != new["state"] and old["state"] not in OPEN:
                again = {("rejected", "processing"): ("retry", "waive"), ("failed", "queued"): ("retry",)}
                assert rule in again.get(change, ()), f"an ended submission went from {change[0]} to {change[1]}"
            if new["state"] not in OPEN and old["state"] != new["state"]:
                assert (id, f"submission.{new['state']}") in told, f"nobody is told that {id} is {new['state']}"
            assert old["version_id"] in (None, new["version_id"]), "a submission became another version"

    def _currents(self, before: Dump, now: Dump) -> None:
        named = {(row["document_id"], row["revision"]): row["version_id"] for row in now["submissions"].values()}
        for id, new in now["documents"].items():
            old = before["documents"].get(id, {})
            revision, version = new["current_revision"], new["current_version_id"]
            assert (old.get("current_revision") or 0) <= (revision or 0), "the shown revision went backwards"
            assert old.get("current_version_id") in (None, version) or revision > old["current_revision"]
            assert version is None or named[id, revision] == version, "the current revision is of another version"
            if old and id in self.deleted:
                assert (version, revision) == (old["current_version_id"], old["current_revision"]), "deleted, promoted"

    def _nothing_done_late(self, before: Dump, now: Dump) -> None:
        """A worker whose lease was taken over may find a step that was lost; else it changes nothing."""
        for table in ("documents", "submissions", "served_pages"):
            assert before[table] == now[table], f"a late worker changed {table}"
        for id, old in before["page_tasks"].items():
            if old["state"] in (TaskState.LEASED, TaskState.DONE, TaskState.FAILED):
                assert now["page_tasks"].get(id) == old, f"a late worker changed row {id}"
        for key, old in before["version_builds"].items():
            new = now["version_builds"][key]
            assert new["state"] in (old["state"], "processing"), f"a late gate made {key} {new['state']}"

    # What is served

    def _served(self, now: Dump) -> None:
        world = self._world
        points = world.index.points(world.build.collection)
        keys = world.store.held
        world.lost = {name for name in world.lost if name not in points and name not in keys}
        self._all_there(now)
        names = sorted({*points, *(row["point_id"] for row in now["served_pages"].values())})
        shown: dict[str, DocumentMetadata] = {}
        for org in {row["org"] for row in now["documents"].values()}:
            served = world.ledger.views.served(world.build, Scope(org=org), names)
            found = self._search(org)
            hidden = set(served) - set(found) - world.lost
            assert not hidden, f"served, but a search does not find {hidden}"
            for document, pages in _by_document(served).items():
                assert now["documents"][document]["org"] == org
                shown[document] = self._one_version(document, pages, now)
            labelled = world.ledger.views.served(world.build, Scope(org=org, labels=(LABEL,)), names)
            expected = {
                document
                for document, metadata in shown.items()
                if LABEL in metadata.labels and now["documents"][document]["org"] == org
            }
            assert set(_by_document(labelled)) == expected, "labels"
            for day in DAYS if _dated(now) else DAYS[:1]:
                self._as_of(org, day, names, now)
        for document, row in now["documents"].items():
            expected_shown = row["current_version_id"] is not None and document not in self.deleted
            assert (document in shown) == expected_shown, f"document {document} is shown: {document in shown}"

    def _search(self, org: str) -> set[str]:
        query = IndexQuery(
            scope=Scope(org=org),
            multivector=np.zeros((0, 4), dtype=np.float32),
            sparse=OneTerm().encode_query("?"),
        )
        with self._world.up():
            return {point for point, _ in self._world.index.search(self._world.build.collection, query, 10_000).sparse}

    def _one_version(self, document: str, pages: list[ServedPage], now: Dump) -> DocumentMetadata:
        """Of one version, all its pages, as one undisturbed run makes them; returns what they say of the document."""
        assert document not in self.deleted, "a deleted document is shown"
        versions = {page.version_id for page in pages}
        assert versions == {now["documents"][document]["current_version_id"]}, f"shown: {versions}"
        (version,) = versions
        content = CONTENT_OF[now["versions"][version]["sha256"]]
        there = sorted((p.page_index, p.point_id, p.image.key, p.text.key) for p in pages)
        indices = [page.page_index for page in sorted(pages, key=lambda page: page.page_index)]
        missing = sorted(set(range(PAGES[content])) - set(indices))
        waived = {key[1] for key in now["waivers"] if key[0] == version}
        assert set(missing) <= waived, f"pages {missing} of content {content} are not there, and nobody waived them"
        for metadata in accepted_metadata(version, now):
            for dpi in DPI:
                made = lines(undisturbed(document, content, metadata, dpi, self._world.build))
                if [line for line in made if line[0] in indices] == there:
                    for page in pages:
                        assert list(page.missing_pages) == missing, f"missing {missing}, told {page.missing_pages}"
                    return DocumentMetadata.model_validate_json(metadata)
        raise AssertionError(f"a mixture is shown of document {document}: {there}")

    def _all_there(self, now: Dump) -> None:
        """What a manifest names is in the store and in the index, but for what was lost by itself."""
        points = self._world.index.points(self._world.build.collection)
        for row in now["served_pages"].values():
            if now["versions"][row["version_id"]]["document_id"] in self.deleted:
                continue
            refs = [ArtifactRef(**json.loads(row[role])) for role in ("image", "text")]
            gone = {ref.key for ref in refs if not self._world.store.has(ref)}
            gone |= {row["point_id"]} - set(points)
            assert gone <= self._world.lost, f"served, and gone: {gone - self._world.lost}"

    def _as_of(self, org: str, day: int, names: list[str], now: Dump) -> None:
        asked = DAY + datetime.timedelta(days=day)
        served = self._world.ledger.views.served(self._world.build, Scope(org=org, as_of=asked), names)
        shown = {document: {p.version_id for p in pages} for document, pages in _by_document(served).items()}
        expected = {}
        for document, row in now["documents"].items():
            if row["org"] == org and document not in self.deleted:
                version = _in_force(document, asked.toordinal(), now)
                expected |= {document: {version}} if version else {}
        assert shown == expected, f"on day {day}: {shown}, not {expected}"


def accepted_metadata(version: str, now: Dump) -> list[str]:
    """What submissions say of the version that they became, latest first, as JSON."""
    rows = [row for row in now["submissions"].values() if row["version_id"] == version]
    return [row["metadata"] for row in sorted(rows, key=lambda row: -row["revision"])]


def _dated(now: Dump) -> bool:
    """Whether any version names a day from which or until which it is in force."""
    days = {"effective", "expired"}
    return any(days & set(json.loads(row["metadata"])) for row in now["submissions"].values())


def _by_document(served: Mapping[str, ServedPage]) -> dict[str, list[ServedPage]]:
    pages: dict[str, list[ServedPage]] = defaultdict(list)
    for page in served.values():
        pages[page.document_id].append(page)
    return pages


def _in_force(document: str, day: int, now: Dump) -> str | None:
    """The version that began last; if it has ended, the one before that is not over, unless it named no end."""
    versions: list[tuple[int, int, int, str]] = []
    for (version, _), row in now["version_builds"].items():
        if now["versions"][version]["document_id"] != document or row["about"] in (None, "null"):
            continue
        about: Any = json.loads(row["about"])
        revisions = [
            sub["revision"]
            for sub in now["submissions"].values()
            if sub["version_id"] == version and sub["state"] == SubmissionState.SEARCHABLE
        ]
        versions.append((about["in_force_from"], max(revisions, default=0), about["in_force_until"], version))
    latest = True
    for begins, _, ends, version in sorted(versions, reverse=True):
        if begins > day:
            continue
        if day < ends and (latest or ends != FOR_EVER):
            return version
        latest = False
    return None
