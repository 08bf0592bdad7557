# mypy: disable-error-code="no-untyped-call"
"""The sample documents say what their tables of text say, and the hostile files are hostile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymupdf
import pytest

from scripts import samples as written
from scripts.sample_texts import (
    ELECTRICAL_RULES,
    ELECTRICAL_RULES_FILE,
    MANUAL,
    MANUAL_FILE,
    POLICY,
    POLICY_FILE,
    Drawing,
    Page,
    Scan,
)

DOCUMENTS = {
    MANUAL_FILE: MANUAL,
    POLICY_FILE: POLICY,
    ELECTRICAL_RULES_FILE: ELECTRICAL_RULES,
}
BLANK_PAGE, SCANNED_PAGE = 10, 11


def squeezed(text: str) -> str:
    return "".join(text.split())


def strings(page: Page) -> Iterator[str]:
    """Every string that the page's text layer must hold."""
    for block in () if isinstance(page, Scan) else page:
        if isinstance(block, str):
            yield block.removeprefix("# ")
        elif isinstance(block, Drawing):
            yield from (label for _, _, label in block.labels)
            yield from (figure for _, figure in block.dimensions)
        else:
            yield from (cell for row in block for cell in row)


def page_texts(path: Path) -> list[str]:
    with pymupdf.open(path) as document:
        return [squeezed(page.get_text()) for page in document]


def questions(samples: Path) -> list[dict[str, Any]]:
    lines = (samples / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_string_can_be_read_back(samples: Path, name: str) -> None:
    texts = page_texts(samples / name)
    assert len(texts) == len(DOCUMENTS[name])
    for text, page in zip(texts, DOCUMENTS[name], strict=True):
        assert [string for string in strings(page) if squeezed(string) not in text] == []
        assert "\0" not in text
        assert "\ufffd" not in text


@pytest.mark.parametrize("name", DOCUMENTS)
def test_fonts_are_embedded_subsets(samples: Path, name: str) -> None:
    with pymupdf.open(samples / name) as document:
        fonts = [font for page in document for font in page.get_fonts()]
    assert fonts
    for _, extension, _, font_name, *_ in fonts:
        assert extension != "n/a"
        assert font_name[6] == "+"


def test_manual_counts_its_front_matter_in_roman_figures(samples: Path) -> None:
    with pymupdf.open(samples / MANUAL_FILE) as manual:
        labels = [page.get_label() for page in manual]
    assert labels == ["i", "ii", "iii", "1", "2", "3", "4", "5", "6", "7", "8", "9"]


def test_labels_are_printed_at_the_foot(samples: Path) -> None:
    texts = page_texts(samples / MANUAL_FILE)
    assert texts[2].endswith("iii")
    assert texts[3].endswith("1")


def test_scanned_page_is_a_picture_without_text(samples: Path) -> None:
    with pymupdf.open(samples / MANUAL_FILE) as manual:
        page = manual[SCANNED_PAGE]
        assert page.get_text() == ""
        assert [page.get_image_bbox(image) for image in page.get_images(full=True)] == [page.rect]


def test_scanned_facts_occur_nowhere_else(samples: Path) -> None:
    everything = "".join(text for name in DOCUMENTS for text in page_texts(samples / name))
    for fact in ("0.06", "74dB", "147s", "HX200-24-0317", "林晓东"):
        assert fact not in everything


def test_blank_page_holds_nothing(samples: Path) -> None:
    with pymupdf.open(samples / MANUAL_FILE) as manual:
        page = manual[BLANK_PAGE]
        assert page.get_text() == ""
        assert page.get_images() == []
        assert page.get_drawings() == []


def test_drawing_is_made_of_vectors(samples: Path) -> None:
    with pymupdf.open(samples / MANUAL_FILE) as manual:
        assert len(manual[4].get_drawings()) >= 20
        assert manual[4].get_images() == []


def test_another_process_writes_the_same_bytes(samples: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "scripts.samples", str(tmp_path)],
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        stdout=subprocess.DEVNULL,
    )
    for path in sorted(samples.iterdir()):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_questions_point_to_pages_that_answer_them(samples: Path) -> None:
    for question in questions(samples):
        for evidence in question["relevant"]:
            text = page_texts(samples / evidence["file"])[evidence["page"]]
            assert question["kind"] == "scan" or squeezed(question["answer"]) in text, question["id"]


def test_scan_questions_are_answered_by_the_scanned_page_alone(samples: Path) -> None:
    scanned = {"file": MANUAL_FILE, "page": SCANNED_PAGE, "grade": 2}
    answers = [question for question in questions(samples) if question["kind"] == "scan"]
    assert {question["lang"] for question in answers} == {"en", "zh"}
    assert all(question["relevant"] == [scanned] for question in answers)


def test_questions_without_answer_have_no_page(samples: Path) -> None:
    for question in questions(samples):
        assert (question["kind"] == "no-answer") == (not question["relevant"]) == (not question["answer"])


def test_questions_have_unique_ids_and_both_languages(samples: Path) -> None:
    asked = questions(samples)
    assert len({question["id"] for question in asked}) == len(asked) == 15
    assert {question["lang"] for question in asked} == {"en", "zh"}


def test_empty_file_cannot_be_opened(hostile_samples: Path) -> None:
    with pytest.raises(pymupdf.EmptyFileError):
        pymupdf.open(hostile_samples / written.EMPTY_FILE)


def test_web_page_is_no_pdf(hostile_samples: Path) -> None:
    assert not (hostile_samples / written.HTML_FILE).read_bytes().startswith(b"%PDF")


def test_truncated_file_opens_with_no_pages(hostile_samples: Path) -> None:
    with pymupdf.open(hostile_samples / written.TRUNCATED_FILE) as document:
        assert document.is_repaired
        assert document.page_count == 0


def test_encrypted_file_asks_for_its_password(hostile_samples: Path) -> None:
    with pymupdf.open(hostile_samples / written.ENCRYPTED_FILE) as document:
        assert document.needs_pass
        with pytest.raises(ValueError, match="encrypted"):
            document.load_page(0)
        assert document.authenticate("user")
        assert "Lockout" in document[0].get_text()


def test_broken_page_fails_among_good_ones(hostile_samples: Path) -> None:
    with pymupdf.open(hostile_samples / written.BROKEN_PAGE_FILE) as document:
        assert document.page_count == 4
        with pytest.raises(pymupdf.mupdf.FzErrorFormat):
            document.load_page(written.BROKEN_PAGE)
        for number in (0, 2, 3):
            assert document[number].get_text().strip() == f"Good page {number}"
            assert document[number].get_pixmap(dpi=72).width == 595
