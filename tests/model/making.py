"""What the stages of the model make of a page: pure functions of their inputs, instead of real work.

Also what a version has to look like in the end, told without a ledger: the plan is followed page by page, nothing is
stored, leased or lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.advance import TaskRow, plan_page, prove_page
from pipeline.domain import (
    ArtifactRef,
    IndexBuild,
    PageProof,
    PageResult,
    PageTask,
    Profile,
    SparseVector,
    StageName,
    TaskState,
    TextSource,
    Verdict,
)
from pipeline.errors import ArtifactLost, PageBroken, PageError, PagegateError, PageSize, StoreUnavailable
from pipeline.identity import artifact_key, canonical, digest, source_key, version_id
from pipeline.metadata import DocumentMetadata
from pipeline.page_text import PageText, facts
from pipeline.protocols import ObjectStore
from pipeline.vectors import dump_vectors
from tests import ledger_driver as driver

PAGES = {1: 1, 2: 2, 3: 2}
"""Pages of each content; content 0 is a source that is not there."""
SCANNED = (2, 0)
"""Content and page that go through OCR."""
BROKEN = (3, 1)
"""Content and page that cannot be rendered; why, depends on the profile."""
TITLE = "A manual"
DPI = (100, 200)

Made = tuple[Mapping[str, tuple[bytes, str]], Mapping[str, Any]]
"""Artifacts (role → bytes and suffix) and facts."""


def source_of(content: int) -> bytes:
    return canonical({"content": content})


def sha256_of(content: int) -> str:
    return hashlib.sha256(source_of(content)).hexdigest()


CONTENT_OF = {sha256_of(content): content for content in PAGES}


def options(dpi: int) -> Mapping[str, Mapping[str, Any]]:
    return driver.options(render={"dpi": dpi})


def make(stage: StageName, inputs: Mapping[str, bytes], options: Mapping[str, Any], page: int) -> Made:
    """Raises `PageError` for the broken page."""
    seed = digest([stage, {role: content.decode("latin-1") for role, content in inputs.items()}, options, page])
    if stage == StageName.RENDER:
        content = json.loads(inputs["source"])["content"]
        if (content, page) == BROKEN:
            raise (PageBroken if options["dpi"] == DPI[0] else PageSize)("this page is no good: leave it out")
        evidence = canonical({"content": content, "page": page, "seed": seed})
        return {"image": (seed.encode(), ".jpg"), "evidence": (evidence, ".json")}, {}
    if stage == StageName.ENCODE:
        rows = np.frombuffer(bytes.fromhex(seed[:8]), dtype=np.uint8).astype(np.float32).reshape(1, 4) + 1
        return {"vectors": (dump_vectors(rows), ".safetensors")}, {}
    found = json.loads(inputs["evidence"]) if stage == StageName.TEXT else {}
    scanned = (found.get("content"), found.get("page")) == SCANNED
    record = PageText(
        verdict=Verdict.NO_TEXT if scanned or stage == StageName.OCR else Verdict.GOOD,
        source=TextSource.OCR if stage == StageName.OCR else TextSource.NONE if scanned else TextSource.NATIVE,
        score=1.0,
        reasons=(),
        label=str(page + 1),
        width=1,
        height=1,
        blocks=(),
        text=seed,
    )
    return {"text": (record.dump(), ".json")}, facts(record)


class MadeStage:
    """A stage that reads its inputs from the store and makes its artifacts by `make`."""

    def __init__(self, name: StageName, store: ObjectStore) -> None:
        self.name = name
        self._store = store

    def process(self, tasks: Sequence[PageTask]) -> Iterable[PageResult]:
        for task in tasks:
            try:
                inputs = {role: self._store.get(ref) for role, ref in task.inputs.items()}
                artifacts, found = make(self.name, inputs, task.options, task.page_index)
            except (ArtifactLost, StoreUnavailable, PageError) as error:
                yield PageResult(task=task, error=error)
            else:
                yield PageResult(task=task, artifacts=artifacts, facts=found)


class OneTerm:
    """A sparse encoder by which every question finds every page."""

    options: Mapping[str, Any] = {}

    def encode_page(self, text: str) -> SparseVector:
        return SparseVector(indices=[1], values=[1.0])

    def encode_query(self, question: str) -> SparseVector:
        return SparseVector(indices=[1], values=[1.0])


_known: dict[tuple[Any, ...], Sequence[PageProof]] = {}


def undisturbed(document: str, content: int, metadata: str, dpi: int, build: IndexBuild) -> Sequence[PageProof]:
    """The pages of a version after a run in which nothing went wrong; `metadata` is its JSON."""
    key = document, content, metadata, dpi, build.id
    if key not in _known:
        _known[key] = _undisturbed(document, content, metadata, dpi, build)
    return _known[key]


def _undisturbed(document: str, content: int, metadata: str, dpi: int, build: IndexBuild) -> Sequence[PageProof]:
    version, sha256 = version_id(document, sha256_of(content)), sha256_of(content)
    key = source_key(document, version, sha256)
    source = ArtifactRef(key=key, sha256=sha256, size=len(source_of(content)))
    about = DocumentMetadata.model_validate_json(metadata).about(TITLE)
    profile = Profile(revision=0, options=options(dpi), digest="")
    pages = range(PAGES[content])
    return [_page(document, version, content, source, about, page, profile, build) for page in pages]


def _page(
    document: str,
    version: str,
    content: int,
    source: ArtifactRef,
    about: Mapping[str, Any],
    page: int,
    profile: Profile,
    build: IndexBuild,
) -> PageProof:
    rows: dict[tuple[StageName, str], TaskRow] = {}
    stored = {source.key: source_of(content)}
    while True:
        steps = plan_page(source, about, rows, profile, [build])
        step = next((step for step in steps if step.row is None), None)
        failed = any(row.state == TaskState.FAILED for row in rows.values())
        if step is None or failed:
            proof = prove_page(version, page, str(page + 1), steps, build)
            assert proof
            return proof
        refs = {role: ArtifactRef(**ref) for role, ref in step.recipe["inputs"].items()}
        try:
            made = _made(step.stage, refs, step.recipe["options"], page, stored)
            outputs = {}
            for role, (body, suffix) in made[0].items():
                name = hashlib.sha256(body).hexdigest()
                written = ArtifactRef(
                    key=artifact_key(document, version, page, role, name, suffix), sha256=name, size=len(body)
                )
                stored[written.key], outputs[role] = body, written
            row = TaskRow(id=len(rows), state=TaskState.DONE, outputs=outputs, facts=made[1])
        except PagegateError as error:
            row = TaskRow(id=len(rows), state=TaskState.FAILED, outputs={}, facts={}, error_code=error.code)
        rows[step.stage, step.fingerprint] = row


def _made(
    stage: StageName, refs: Mapping[str, ArtifactRef], options: Mapping[str, Any], page: int, stored: dict[str, bytes]
) -> Made:
    if stage == StageName.INDEX:
        return {}, {"n_tokens": 1}
    return make(stage, {role: stored[ref.key] for role, ref in refs.items()}, options, page)


def lines(proofs: Iterable[PageProof]) -> list[tuple[int, str | None, str, str]]:
    """Of a manifest: page, point, keys of image and text of the pages that did not fail."""
    good = [proof for proof in proofs if not proof.failure]
    return [(p.page_index, p.point_id, p.artifacts["image"].key, p.artifacts["text"].key) for p in good]


def failures(proofs: Iterable[PageProof]) -> set[tuple[int, str, str]]:
    found = [proof.failure for proof in proofs if proof.failure]
    return {(failure.page_index, failure.stage, failure.code) for failure in found}
