"""Rows to records and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from pipeline.advance import TaskRow
from pipeline.domain import (
    ArtifactRef,
    BuildState,
    EncoderContract,
    IndexBuild,
    PageTask,
    Profile,
    StageName,
    Submission,
    SubmissionState,
    TaskState,
)
from pipeline.metadata import DocumentMetadata

AnyRow = Row[*tuple[Any, ...]]

Refs = Mapping[str, ArtifactRef]


def refs(stored: Mapping[str, Any] | None) -> dict[str, ArtifactRef]:
    return {role: ArtifactRef(**ref) for role, ref in (stored or {}).items()}


def stored(artifacts: Refs) -> dict[str, Any]:
    return {role: dataclasses.asdict(ref) for role, ref in artifacts.items()}


def about(row: AnyRow) -> dict[str, Any]:
    """What the payload has to say of a version, from its columns `metadata` and `title`."""
    return DocumentMetadata.model_validate(row.metadata or {}).about(row.title)


def profile(row: AnyRow) -> Profile:
    return Profile(revision=row.revision, options=row.options, digest=row.digest)


def build(row: AnyRow) -> IndexBuild:
    return IndexBuild(
        id=row.id,
        collection=row.collection,
        contract=EncoderContract(**row.contract),
        contract_digest=row.contract_digest,
        state=BuildState(row.state),
    )


def task_row(row: AnyRow) -> TaskRow:
    return TaskRow(
        id=row.id,
        state=TaskState(row.state),
        outputs=refs(row.outputs),
        facts=row.facts or {},
        error_code=row.error_code,
        error_message=row.error_message,
        reopened=row.state == TaskState.PENDING and row.finished_at is not None,
    )


def page_task(row: AnyRow, builds: Mapping[str, IndexBuild]) -> PageTask:
    return PageTask(
        id=row.id,
        stage=StageName(row.stage),
        fingerprint=row.fingerprint,
        org=row.org,
        document_id=row.document_id,
        version_id=row.version_id,
        page_index=row.page_index,
        page_label=row.page_label,
        inputs=refs(row.recipe["inputs"]),
        options=row.recipe["options"],
        about=row.recipe.get("about", {}),
        build=builds[row.build_id] if row.build_id else None,
        attempts=row.attempts,
    )


def submission(row: AnyRow) -> Submission:
    ended = row.ended_at
    return Submission(
        id=row.id,
        document_id=row.document_id,
        org=row.org,
        source_uri=row.source_uri,
        revision=row.revision,
        metadata=DocumentMetadata.model_validate(row.metadata),
        state=SubmissionState(row.state),
        upload=ArtifactRef(**row.upload) if row.upload else None,
        version_id=row.version_id,
        error_code=row.error_code,
        error_message=row.error_message,
        error_stage=row.error_stage,
        error_page=row.error_page,
        superseded_by=_superseded_by(row),
        attempts=row.attempts,
        seconds=(ended - row.created_at) / 1e6 if ended else None,
    )


def _superseded_by(row: AnyRow) -> int | None:
    current: int | None = row.current_revision
    return current if current is not None and current > row.revision else None
