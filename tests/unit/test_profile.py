"""The options that change artifacts."""

from __future__ import annotations

from pipeline.engines.bm25 import Bm25Encoder
from pipeline.settings import Settings
from pipeline.stages import CODE_VERSIONS
from pipeline.wiring import profile_options


def test_a_stage_is_planned_under_the_code_version_that_its_workers_claim() -> None:
    options = profile_options(Settings(), Bm25Encoder())

    assert {stage: stage_options["version"] for stage, stage_options in options.items()} == CODE_VERSIONS
