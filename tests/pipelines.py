"""Pipelines for tests, and what is compared of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.domain import Hit, Submission
from pipeline.inline import drain
from pipeline.metadata import DocumentMetadata, Scope
from pipeline.settings import load_settings
from pipeline.wiring import Pipeline
from scripts.sources import source_uri

ORG = "acme"
NOTHING = DocumentMetadata()


def open_at(home: Path, **overrides: Any) -> Pipeline:
    """An embedded pipeline in `home` whose settings differ from the defaults by `overrides`."""
    pipeline = Pipeline(load_settings(home=home, **overrides))
    pipeline.ledger.migrate()
    return pipeline.open()


def submit(
    pipeline: Pipeline, paths: Iterable[Path], org: str = ORG, metadata: DocumentMetadata = NOTHING
) -> list[Submission]:
    return [pipeline.ledger.submissions.submit(org, source_uri(path), metadata) for path in paths]


def ingest(pipeline: Pipeline, *paths: Path, org: str = ORG, metadata: DocumentMetadata = NOTHING) -> list[Submission]:
    """Submit and process in this process; returns the submissions as they ended."""
    ids = [submission.id for submission in submit(pipeline, paths, org, metadata)]
    drain(pipeline)
    return list(pipeline.ledger.views.submissions(ids))


def ask(pipeline: Pipeline, question: str, k: int = 10, org: str = ORG, **scope: Any) -> list[Hit]:
    return pipeline.searcher.search(Scope(org=org, **scope), question, k)


def stage_counts(pipeline: Pipeline) -> dict[str, int]:
    """Rows done, by stage."""
    tasks = pipeline.ledger.views.status(None).tasks
    return {stage: count for (stage, state), count in tasks.items() if state == "done"}


def snapshot(pipeline: Pipeline, submissions: Iterable[Submission]) -> Mapping[str, Any]:
    """What must be the same after an undisturbed run and after any other: manifests, objects, served points."""
    build = pipeline.ledger.registry.active_build()
    assert build is not None
    manifests = {}
    points = {}
    for submission in submissions:
        assert submission.version_id is not None
        manifest = pipeline.ledger.views.manifest(submission.version_id, build.id)
        manifests[submission.source_uri] = manifest
        found = pipeline.index.inspect(build.collection, [point_id for _, point_id, _, _ in manifest])
        points |= {point: (facts.payload["page_index"], facts.n_tokens) for point, facts in found.items()}
    return {
        "manifests": manifests,
        "points": points,
        "all points": sorted(pipeline.index.point_ids(build.collection)),
        "objects": sorted(pipeline.store.keys()),
    }
