"""The stages of a page, in order.

    submission ──► intake ──► render ──► text ──► (ocr) ──┐
                                 └─────► encode ──────────┴─► index ──► gate

`pipeline.advance` decides which of them a page needs next; each has a file of its own here.
"""

from __future__ import annotations

import dataclasses

from pipeline.domain import StageName


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StageSpec:
    """What is known of a stage without loading it.

    `version` is raised whenever its code would write something else from the same inputs: it is part of the
    fingerprint, so that old and new results never mix. `pool` is the kind of actor that hosts it.
    """

    name: StageName
    version: int
    pool: str
    reads: str
    writes: str


STAGES = (
    StageSpec(name=StageName.RENDER, version=1, pool="pdf", reads="source", writes="image, evidence"),
    StageSpec(name=StageName.TEXT, version=1, pool="pdf", reads="evidence", writes="text"),
    StageSpec(name=StageName.OCR, version=1, pool="ocr", reads="image, text", writes="text"),
    StageSpec(name=StageName.ENCODE, version=1, pool="encoder", reads="image or text", writes="vectors"),
    StageSpec(name=StageName.INDEX, version=2, pool="index", reads="vectors, text", writes="a point"),
)

CODE_VERSIONS = {spec.name: spec.version for spec in STAGES}
