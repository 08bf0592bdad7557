"""The verdict on a page's native text, from evidence made here."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.domain import TextSource, Verdict
from pipeline.page_text import load_page_text
from pipeline.settings import TextOptions
from pipeline.stages.text import judge, read_native

OPTIONS = TextOptions().model_dump()


def evidence(*, visible: int = 500, unmapped: int = 0, ink: float = 0.05, image_share: float = 0.0) -> dict[str, Any]:
    return {
        "label": "iv",
        "width": 1240,
        "height": 1754,
        "blocks": [{"bbox": [1, 2, 3, 4], "lines": [{"text": "first"}, {"text": "second"}]}],
        "glyphs": {"visible": visible, "unmapped": unmapped},
        "images": [],
        "image_share": image_share,
        "ink": {"share": ink, "uncovered": 0.0},
    }


@pytest.mark.parametrize(
    ("page", "verdict"),
    [
        (evidence(), Verdict.GOOD),
        (evidence(visible=0, ink=0.0), Verdict.BLANK),
        (evidence(visible=0, ink=0.00019), Verdict.BLANK),
        (evidence(visible=0, ink=0.0002), Verdict.NO_TEXT),
        (evidence(visible=0, image_share=1.0), Verdict.NO_TEXT),
        (evidence(visible=1000, unmapped=200), Verdict.GOOD),
        (evidence(visible=1000, unmapped=201), Verdict.GARBLED),
        (evidence(visible=39, image_share=0.61), Verdict.NO_TEXT),  # a page number stamped on a scan
        (evidence(visible=40, image_share=0.61), Verdict.GOOD),
        (evidence(visible=10, image_share=0.3), Verdict.GOOD),  # a slide or a figure with few characters
    ],
)
def test_the_verdict_follows_from_the_evidence(page: dict[str, Any], verdict: Verdict) -> None:
    found, score, reasons = judge(page, OPTIONS)
    assert found == verdict
    assert 0 <= score <= 1
    assert bool(reasons) == (verdict != Verdict.GOOD)


def test_forced_ocr_reads_every_page_that_is_not_blank() -> None:
    forced = OPTIONS | {"force_ocr": True}
    assert judge(evidence(), forced)[0] == Verdict.GARBLED
    assert judge(evidence(visible=0, ink=0.0), forced)[0] == Verdict.BLANK


def test_good_text_is_kept_in_reading_order_with_its_boxes() -> None:
    record = read_native(evidence(), OPTIONS)
    assert (record.source, record.text, record.label) == (TextSource.NATIVE, "first\nsecond", "iv")
    assert record.blocks[0].bbox == (1, 2, 3, 4)
    assert not record.needs_ocr


def test_text_that_is_not_good_enough_is_not_kept() -> None:
    record = read_native(evidence(visible=100, unmapped=90), OPTIONS)
    assert (record.source, record.text, record.needs_ocr) == (TextSource.NONE, "", True)


def test_a_blank_page_needs_no_ocr() -> None:
    assert not read_native(evidence(visible=0, ink=0.0), OPTIONS).needs_ocr


def test_a_record_survives_its_artifact() -> None:
    record = read_native(evidence(), OPTIONS)
    assert load_page_text(record.dump()) == record
    assert record.dump() == load_page_text(record.dump()).dump()
