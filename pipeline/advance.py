"""What follows from what is done: the one place that knows the order of the stages.

Pure: from the rows a page has, the profile in force and the live builds, it tells the rows the page ought to
have. The ledger inserts those that are missing; the gate asks the same function whether a page is complete.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.domain import (
    ArtifactRef,
    IndexBuild,
    PageFailure,
    PageProof,
    Profile,
    StageName,
    TaskState,
)
from pipeline.identity import fingerprint, point_id


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TaskRow:
    """What the ledger holds of one page in one stage under one fingerprint."""

    id: int
    state: TaskState
    outputs: Mapping[str, ArtifactRef]
    facts: Mapping[str, Any]
    error_code: str | None = None
    error_message: str | None = None
    reopened: bool = False
    """It was done once, and is to be done again: somebody may still be served what it wrote."""


Rows = Mapping[tuple[StageName, str], TaskRow]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A row that ought to exist, and the row if it does."""

    stage: StageName
    fingerprint: str
    recipe: Mapping[str, Any]
    build: IndexBuild | None
    row: TaskRow | None

    @property
    def done(self) -> TaskRow | None:
        return self.row if self.row and self.row.state == TaskState.DONE else None


def plan_page(
    source: ArtifactRef, about: Mapping[str, Any], rows: Rows, profile: Profile, builds: Sequence[IndexBuild]
) -> list[Step]:
    """The rows one page ought to have, as far as what is done allows to know, in the order of the stages.

    An input's digest is part of a fingerprint, so a step is known only once its inputs are done. `about` is what
    the point's payload says of the document: other labels are other points, and the gate swaps them.
    """
    steps: list[Step] = []

    def step(stage: StageName, inputs: Mapping[str, ArtifactRef], build: IndexBuild | None = None) -> Step:
        recipe = _recipe(stage, profile, inputs, build)
        if stage == StageName.INDEX:
            recipe["about"] = about
        name = fingerprint(recipe)
        row = rows.get((stage, name))
        steps.append(Step(stage=stage, fingerprint=name, recipe=recipe, build=build, row=row))
        return steps[-1]

    render = step(StageName.RENDER, {"source": source}).done
    if render is None:
        return steps
    text = step(StageName.TEXT, {"evidence": render.outputs["evidence"]}).done
    if text is not None and text.facts["needs_ocr"]:
        text = step(StageName.OCR, {"image": render.outputs["image"], "text": text.outputs["text"]}).done
    for build in builds:
        reads = build.contract.reads
        content = render if reads == "image" else text
        if content is None:
            continue
        encode = step(StageName.ENCODE, {reads: content.outputs[reads]}, build).done
        if encode is not None and text is not None:
            vectors, final = encode.outputs["vectors"], text.outputs["text"]
            step(StageName.INDEX, {"vectors": vectors, "text": final}, build)
    return steps


def _recipe(
    stage: StageName, profile: Profile, inputs: Mapping[str, ArtifactRef], build: IndexBuild | None
) -> dict[str, Any]:
    """All that a stage's result depends on. Its digest is the fingerprint, so it is self-describing."""
    recipe: dict[str, Any] = {
        "stage": stage.value,
        "options": dict(profile.options[stage]),
        "inputs": {role: dataclasses.asdict(ref) for role, ref in inputs.items()},
    }
    if build:
        recipe |= {"build": build.id, "contract": build.contract_digest}
    return recipe


def prove_page(
    version_id: str, page_index: int, page_label: str, steps: Sequence[Step], build: IndexBuild
) -> PageProof | None:
    """What the ledger says of a page in `build`: complete or failed; None while something is still to be done.

    `steps` are those of `plan_page` for this one build.
    """
    failed = next((s for s in steps if s.row and s.row.state == TaskState.FAILED), None)
    if failed:
        return PageProof(page_index=page_index, page_label=page_label, failure=_failure(page_index, failed))
    done = {step.stage: (step, step.done) for step in steps if step.done}
    if StageName.INDEX not in done or len(done) != len(steps):
        return None
    step, index = done[StageName.INDEX]
    _, render = done[StageName.RENDER]
    _, text = done.get(StageName.OCR, done[StageName.TEXT])
    assert index and render and text  # noqa: S101 - `done` holds only done rows
    return PageProof(
        page_index=page_index,
        page_label=page_label,
        point_id=point_id(build.id, version_id, page_index, step.fingerprint),
        n_tokens=index.facts["n_tokens"],
        artifacts={"image": render.outputs["image"], "text": text.outputs["text"]},
        task_ids={"image": render.id, "text": text.id, "point": index.id},
        verdict=text.facts["verdict"],
    )


def _failure(page_index: int, step: Step) -> PageFailure:
    row = step.row
    return PageFailure(
        page_index=page_index,
        stage=step.stage.value,
        code=(row and row.error_code) or "unknown",
        message=(row and row.error_message) or "",
    )
