"""Do ledger, object store and index agree? What is damaged is found, put right, and nothing else is touched."""

from __future__ import annotations

import dataclasses
import os
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as engine

from pipeline.audit import Audit
from pipeline.domain import IndexBuild, IndexPoint, SparseVector, SubmissionState
from pipeline.garbage import Swept, sweep
from pipeline.inline import drain
from pipeline.stores.points import LIVE
from pipeline.wiring import Pipeline
from tests.pdfs import write_pdf
from tests.pipelines import ORG, ask, ingest, open_at, snapshot, stage_counts, submit

NOTHING_SWEPT = Swept(objects=0, points=0, documents=0, uploads=0, events=0)


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    opened = open_at(tmp_path / "home")
    yield opened
    opened.close()


def audit_of(pipeline: Pipeline) -> Audit:
    return Audit(ledger=pipeline.ledger, store=pipeline.store, index=pipeline.index)


def active(pipeline: Pipeline) -> IndexBuild:
    build = pipeline.ledger.registry.active_build()
    assert build
    return build


def kinds(findings: Any) -> list[str]:
    return sorted(finding.kind for finding in findings)


def path_of(pipeline: Pipeline, key: str) -> Path:
    return pipeline.settings.home / "objects" / key


def test_an_installation_in_which_all_is_well_has_no_findings(pipeline: Pipeline, tmp_path: Path) -> None:
    ingest(pipeline, write_pdf(tmp_path / "a.pdf", ["alpha", "beta"]))
    assert list(audit_of(pipeline).find(grace_s=0)) == []


def test_what_was_damaged_is_found_and_made_again(pipeline: Pipeline, tmp_path: Path) -> None:
    """Five artifacts and five points deleted, two images cut short, five points that nobody wrote."""
    paths = [write_pdf(tmp_path / f"{n}.pdf", [f"page {p} of document {n}" for p in range(6)]) for n in range(3)]
    submissions = ingest(pipeline, *paths)
    before, counts = snapshot(pipeline, submissions), stage_counts(pipeline)
    rng, build = random.Random(7), active(pipeline)
    keys = sorted(key for key in pipeline.store.keys() if "/source/" not in key)
    images = [key for key in keys if "/image/" in key]
    cut = rng.sample(images, 2)
    lost = rng.sample([key for key in keys if key not in cut], 5)
    points = sorted(pipeline.index.point_ids(build.collection))
    gone = rng.sample(points, 5)
    add_orphans(pipeline, points[0], 5)
    for key in cut:
        path_of(pipeline, key).write_bytes(path_of(pipeline, key).read_bytes()[:100])
    for key in lost:
        pipeline.store.delete(key)
    pipeline.index.delete(build.collection, gone)

    findings = list(audit_of(pipeline).find())
    assert kinds(findings) == ["object"] * 7 + ["orphan point"] * 5 + ["point"] * 5
    assert {finding.name for finding in findings if finding.kind == "object"} == {*cut, *lost}
    assert {finding.name for finding in findings if finding.kind == "point"} == set(gone)
    assert audit_of(pipeline).repair(findings) == 17

    assert pipeline.ledger.views.idle() is False
    drain(pipeline)
    assert list(audit_of(pipeline).find(grace_s=0)) == []
    assert snapshot(pipeline, submissions) == before
    assert stage_counts(pipeline) == counts


def add_orphans(pipeline: Pipeline, like: str, count: int) -> None:
    """Copies of a served point under ids that no row has."""
    build = active(pipeline)
    (facts,) = pipeline.index.inspect(build.collection, [like]).values()
    rows = np.ones((1, facts.dim), dtype=np.float32)
    some = SparseVector(indices=[1], values=[1.0])
    orphans = [
        IndexPoint(id=str(uuid.uuid4()), multivector=rows, sparse=some, payload=facts.payload) for _ in range(count)
    ]
    pipeline.index.upsert(build.collection, orphans)


def test_orphan_points_are_never_shown(pipeline: Pipeline, tmp_path: Path) -> None:
    ingest(pipeline, write_pdf(tmp_path / "a.pdf", ["alpha"]))
    (point,) = pipeline.index.point_ids(active(pipeline).collection)
    add_orphans(pipeline, point, 5)
    assert len(ask(pipeline, "alpha")) == 1


def test_a_served_page_that_its_hint_hides_is_shown_again(pipeline: Pipeline, tmp_path: Path) -> None:
    (submission,) = ingest(pipeline, write_pdf(tmp_path / "a.pdf", ["alpha", "beta"]))
    pipeline.index.demote(active(pipeline).collection, submission.document_id, 99)
    assert ask(pipeline, "alpha beta") == []
    findings = list(audit_of(pipeline).find())
    assert kinds(findings) == ["hidden point"] * 2
    assert audit_of(pipeline).repair(findings) == 2
    assert len(ask(pipeline, "alpha beta")) == 2
    assert list(audit_of(pipeline).find()) == []


@pytest.mark.parametrize("change", [{"org": "other"}, {LIVE: 1, "labels": ["theirs"]}])
def test_a_point_with_another_payload_is_written_anew(
    pipeline: Pipeline, tmp_path: Path, change: dict[str, Any]
) -> None:
    ingest(pipeline, write_pdf(tmp_path / "a.pdf", ["alpha"]))
    edge: Any = pipeline.index
    (point,) = edge.point_ids(active(pipeline).collection)
    edge._set(active(pipeline).collection, engine.Filter(must=[engine.HasIdCondition({point})]), change)
    findings = list(audit_of(pipeline).find())
    assert kinds(findings) == ["point"]
    assert audit_of(pipeline).repair(findings) == 1
    drain(pipeline)
    assert list(audit_of(pipeline).find()) == []
    assert len(ask(pipeline, "alpha")) == 1


def test_a_lost_source_is_told_and_healed_by_submitting_it_again(pipeline: Pipeline, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", ["alpha"])
    ingest(pipeline, path)
    (source,) = (key for key in pipeline.store.keys() if "/source/" in key)
    pipeline.store.delete(source)
    findings = list(audit_of(pipeline).find())
    assert kinds(findings) == ["source"]
    assert audit_of(pipeline).repair(findings) == 0
    ingest(pipeline, path)
    assert list(audit_of(pipeline).find()) == []


# Sweeping


def test_nothing_of_a_living_document_is_ever_swept(pipeline: Pipeline, tmp_path: Path) -> None:
    """Nor of its earlier versions, from which `--as-of` answers, nor of what waits to be taken in."""
    path = write_pdf(tmp_path / "a.pdf", ["alpha"])
    ingest(pipeline, path)
    write_pdf(path, ["beta"])
    ingest(pipeline, path)
    write_pdf(path, ["gamma"])
    submit(pipeline, [path])
    before = sorted(pipeline.store.keys())
    swept = sweep(audit_of(pipeline), None, 0.0, dry=False)
    assert (swept.objects, swept.points, swept.documents) == (0, 0, 0)
    assert sorted(pipeline.store.keys()) == before


def test_all_of_a_deleted_document_goes_after_its_grace_and_nothing_else(pipeline: Pipeline, tmp_path: Path) -> None:
    kept = ingest(pipeline, write_pdf(tmp_path / "kept.pdf", ["alpha"]))
    before = snapshot(pipeline, kept)
    ingest(pipeline, write_pdf(tmp_path / "gone.pdf", ["alpha", "beta"]))
    uri = (tmp_path / "gone.pdf").as_uri()
    pipeline.ledger.decisions.delete(ORG, uri)
    assert len(ask(pipeline, "alpha beta")) == 1

    assert sweep(audit_of(pipeline), None, 3600.0, dry=False) == NOTHING_SWEPT, "within its grace it stays"
    dry = sweep(audit_of(pipeline), None, 0.0, dry=True)
    assert (dry.objects, dry.points, dry.documents) == (1 + 2 * 4, 2, 1)
    assert sweep(audit_of(pipeline), None, 0.0, dry=True) == dry, "a dry run changes nothing"
    time.sleep(0.01)
    swept = sweep(audit_of(pipeline), None, 0.0, dry=False)
    assert dataclasses.replace(swept, events=0) == dry
    assert snapshot(pipeline, kept) == before
    assert dataclasses.replace(sweep(audit_of(pipeline), None, 0.0, dry=False), events=0) == NOTHING_SWEPT
    (again,) = ingest(pipeline, tmp_path / "gone.pdf")
    assert again.state == SubmissionState.SEARCHABLE
    assert list(audit_of(pipeline).find(grace_s=0)) == []


def test_an_object_that_nothing_names_goes_when_it_is_old_enough(pipeline: Pipeline, tmp_path: Path) -> None:
    (submission,) = ingest(pipeline, write_pdf(tmp_path / "a.pdf", ["alpha"]))
    key = f"{submission.document_id}/{submission.version_id}/00000/image/{'0' * 64}.jpg"
    pipeline.store.put(key, b"of a worker whose lease was lost")
    foreign = "somebody/elses.pdf"
    pipeline.store.put(foreign, b"of another application")
    assert sweep(audit_of(pipeline), None, 3600.0, dry=False) == NOTHING_SWEPT
    assert kinds(audit_of(pipeline).find(grace_s=0)) == ["orphan object"]
    assert sweep(audit_of(pipeline), None, 0.0, dry=False).objects == 1
    assert key not in set(pipeline.store.keys())
    assert foreign in set(pipeline.store.keys())


def test_what_somebody_names_again_just_before_it_is_swept_stays(pipeline: Pipeline, tmp_path: Path) -> None:
    (submission,) = ingest(pipeline, write_pdf(tmp_path / "a.pdf", ["alpha"]))
    key = f"{submission.document_id}/{submission.version_id}/00000/image/{'0' * 64}.jpg"
    pipeline.store.put(key, b"pixels")
    (path_of(pipeline, key)).touch()
    os.utime(path_of(pipeline, key), (1, 1))
    audit = audit_of(pipeline)
    findings = list(audit.orphan_objects(3600.0))
    assert kinds(findings) == ["orphan object"]
    pipeline.store.put(key, b"pixels")
    assert audit.remove(findings, 3600.0) == 0, "it was put again, and is young"
    assert key in set(pipeline.store.keys())
