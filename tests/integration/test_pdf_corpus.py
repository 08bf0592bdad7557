# mypy: untyped-calls-exclude=pymupdf
"""Real files: hostile ones end as the manifest says, in bounded time; on the others boxes and counts are right."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymupdf
import pytest
from PIL import Image

from pipeline import errors
from pipeline.pdf import PdfInfo, PdfReader, RenderedPage
from pipeline.settings import PdfLimits, RenderOptions

CORPUS = Path(__file__).resolve().parents[2].parent / "shared" / "corpus"
pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real PDFs is not at ../shared/corpus"),
]
OPTIONS = RenderOptions()


@pytest.fixture(scope="module")
def reader() -> Iterator[PdfReader]:
    with PdfReader(PdfLimits()) as reader:
        yield reader


def first_page(reader: PdfReader, name: str, index: int = 0) -> tuple[RenderedPage, dict[str, Any]]:
    (page,) = reader.pages(CORPUS / name, [index], OPTIONS)
    assert isinstance(page, RenderedPage), page
    return page, json.loads(page.evidence)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("empty.pdf", errors.NotAPdf),
        ("invalid.pdf", errors.NotAPdf),
        ("nginx-welcome-page-saved-as.pdf", errors.NotAPdf),
        ("corrupted.pdf", errors.NoPages),
        ("append-xref-loop.pdf", errors.NoPages),
        ("fhs-3.0-truncated-60percent.pdf", errors.NoPages),
        ("r6-user-password.pdf", errors.Encrypted),
    ],
)
def test_a_file_without_pages_for_us_is_refused(
    reader: PdfReader, name: str, error: type[errors.DocumentError]
) -> None:
    with pytest.raises(error):
        reader.inspect(CORPUS / "hostile" / name)


@pytest.mark.parametrize(
    ("name", "pages", "told"),
    [
        ("pages-loop.pdf", 1, {"repaired": True}),
        ("document_aactions.pdf", 1, {"repaired": True}),
        ("bug_1265.pdf", 1, {"repaired": True, "xfa": True}),
        ("poster.pdf", 1, {}),
        ("hugemono.pdf", 1, {}),
        ("livecycle.pdf", 1, {"xfa": True}),
        ("testPDFPackage.pdf", 1, {"attachments": ("PDF1.pdf", "PDF2.pdf")}),
        ("with-attachment.pdf", 1, {"attachments": ("image.png",)}),
        ("r6-empty-password.pdf", 1, {}),
        ("testPDF_jpeg2000.pdf", 1, {}),
        ("zen_of_python_corrupted.pdf", 1, {}),
        ("ngspice-manual-715p.pdf", 715, {}),
        ("LinuxCNC_Documentation-1335p.pdf", 1335, {}),
    ],
)
def test_an_awkward_file_tells_what_it_is(reader: PdfReader, name: str, pages: int, told: dict[str, Any]) -> None:
    found = reader.inspect(CORPUS / "hostile" / name)
    assert found.page_count == len(found.page_labels) == pages
    assert {key: getattr(found, key) for key in told} == told


def test_page_labels_are_not_page_indices(reader: PdfReader) -> None:
    labels = reader.inspect(CORPUS / "ordinary/LinuxCNC_Getting_Started.pdf").page_labels
    assert (labels[0], labels[9]) == ("i", "4")
    assert reader.inspect(CORPUS / "ordinary/avrdude.pdf").page_labels[:3] == ("T-1", "T-2", "i")
    assert reader.inspect(CORPUS / "ordinary/fhs-3.0.pdf").page_labels[:3] == ("1", "2", "i")


def test_an_oversized_poster_is_page_size(reader: PdfReader) -> None:
    (result,) = reader.pages(CORPUS / "hostile/poster.pdf", [0], OPTIONS)
    assert isinstance(result, errors.PageSize)


def test_a_page_of_seventy_million_points_is_drawn_within_the_cap(reader: PdfReader) -> None:
    page, _ = first_page(reader, "hostile/hugemono.pdf")
    assert page.width * page.height <= OPTIONS.max_pixels
    assert page.dpi < 20


def test_a_tiny_page_is_an_image_all_the_same(reader: PdfReader) -> None:
    page, _ = first_page(reader, "hostile/bug_1265.pdf")
    assert (page.width, page.height) == (3, 3)


def test_pages_that_a_repair_took_away_are_broken(reader: PdfReader) -> None:
    results = list(reader.pages(CORPUS / "hostile/document_aactions.pdf", [0, 1, 2], OPTIONS))
    assert [getattr(result, "code", "good") for result in results] == ["good", "page_broken", "page_broken"]


def test_every_file_ends_soon_and_every_result_has_a_type(reader: PdfReader) -> None:
    for path in sorted(CORPUS.glob("*/*.[pP][dD][fF]")):
        began = time.monotonic()
        try:
            found: PdfInfo | None = reader.inspect(path)
        except errors.DocumentError:
            found = None
        for result in reader.pages(path, _sample(found.page_count) if found else [], OPTIONS):
            if isinstance(result, errors.PageError):
                assert result.code == "page_size", f"{path.name}: {result}"
        assert time.monotonic() - began < 20, path.name


def test_no_page_needs_what_the_sandbox_takes_away() -> None:
    """A library that opens a file, or loads a module late, would give another result in the sandbox."""
    options = RenderOptions(dpi=36)
    with PdfReader(PdfLimits()) as shut_off, PdfReader(PdfLimits(sandbox="off")) as free:
        for path in sorted(CORPUS.glob("[!h]*/*.[pP][dD][fF]")):
            found = shut_off.inspect(path)
            assert found == free.inspect(path)
            indices = range(0, found.page_count, max(1, found.page_count // 12))
            for one, other in zip(
                shut_off.pages(path, indices, options), free.pages(path, indices, options), strict=True
            ):
                assert isinstance(one, RenderedPage), f"{path.name}: {one}"
                assert one == other, path.name


REFUSED = {
    "empty.pdf": "not_a_pdf",
    "invalid.pdf": "not_a_pdf",
    "nginx-welcome-page-saved-as.pdf": "not_a_pdf",
    "corrupted.pdf": "no_pages",
    "append-xref-loop.pdf": "no_pages",
    "fhs-3.0-truncated-60percent.pdf": "no_pages",
    "r6-user-password.pdf": "encrypted",
    "poster.pdf": "page_size",
}
"""Everything else in the folder has only good pages."""


@pytest.mark.parametrize("path", sorted(CORPUS.glob("hostile/*")), ids=lambda path: path.name)
def test_a_hostile_file_stays_within_the_limits_and_disturbs_no_other(path: Path) -> None:
    limits = PdfLimits()
    with PdfReader(limits) as reader:
        before = first_page(reader, "ordinary/multicolumn.pdf")
        code, slowest = _read_all(reader, path)
        assert first_page(reader, "ordinary/multicolumn.pdf") == before
    assert code == REFUSED.get(path.name)
    assert slowest < limits.seconds_per_page
    assert 30_000_000 < reader.peak_bytes < limits.memory_bytes / 2


def _read_all(reader: PdfReader, path: Path) -> tuple[str | None, float]:
    """The first error's code, and the seconds of the slowest step; of a long file, a part is read."""
    times = [time.monotonic()]
    code = None
    try:
        page_count = reader.inspect(path).page_count
        times.append(time.monotonic())
        for result in reader.pages(path, range(min(page_count, 60)), OPTIONS):
            code = code or (result.code if isinstance(result, errors.PageError) else None)
            times.append(time.monotonic())
    except errors.DocumentError as error:
        code = error.code
    return code, float(np.diff([*times, time.monotonic()]).max())


def _sample(page_count: int) -> list[int]:
    return sorted({0, page_count // 2, page_count - 1})


@pytest.mark.parametrize(
    "name",
    [
        "ordinary/nics-background-checks-2015-11-rotated.pdf",
        "garbled/rotated_page.pdf",
        "ordinary/multicolumn.pdf",
        "ordinary/journal.pone.0196757.pdf",
        "hostile/zen_of_python_corrupted.pdf",
    ],
)
def test_boxes_of_lines_hold_the_ink_of_the_page(reader: PdfReader, name: str) -> None:
    page, evidence = first_page(reader, name)
    grey = np.asarray(Image.open(io.BytesIO(page.image)).convert("L"), dtype=np.int16)
    boxes = [line["bbox"] for block in evidence["blocks"] for line in block["lines"]]
    inked = [np.ptp(grey[int(y0) : int(y1) + 1, int(x0) : int(x1) + 1]) > 60 for x0, y0, x1, y1 in boxes]
    assert len(boxes) > 20
    assert np.mean(inked) > 0.98
    shifted = [np.ptp(grey[int(y0) : int(y1) + 1, -int(x1) - 1 : -int(x0) or None]) > 60 for x0, y0, x1, y1 in boxes]
    assert np.mean(shifted) < np.mean(inked), "mirrored boxes hold as much: this test tells nothing"


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("garbled/Fujitsu.pdf", 0),
        ("garbled/Panasonic.pdf", 1),
        ("garbled/Anonymous-Japanese-Educational.pdf", 2),
        ("garbled/rotated_page.pdf", 0),
        ("garbled/truetype_font_nomapping.pdf", 0),
        ("ordinary/GeoTopo-komprimiert.pdf", 28),
        ("ordinary/ctex-faq.pdf", 0),
        ("ordinary/Software_Supply_Chain_Practices_whitepaper_v2.pdf", 5),
    ],
)
def test_unmapped_glyphs_are_as_many_as_two_extractions_say(reader: PdfReader, name: str, index: int) -> None:
    """The subtraction of shared/TRAPS A2 and A4, computed the other way."""
    _, evidence = first_page(reader, name, index)
    page = pymupdf.open(CORPUS / name)[index]
    with_default = page.get_text(flags=pymupdf.TEXTFLAGS_TEXT).count("�")
    without_cid = pymupdf.TEXTFLAGS_TEXT & ~pymupdf.TEXT_CID_FOR_UNKNOWN_UNICODE
    expected = max(0, page.get_text(flags=without_cid).count("�") - with_default)
    glyphs = evidence["glyphs"]
    assert (glyphs["unmapped"], glyphs["replacement"]) == (expected, with_default)


def test_an_invisible_layer_is_told_from_visible_text(reader: PdfReader) -> None:
    _, evidence = first_page(reader, "garbled/graph_ocred.pdf")
    assert evidence["glyphs"]["visible"] == 0
    assert evidence["glyphs"]["invisible"] > 50
    assert evidence["image_share"] > 0.99
    _, evidence = first_page(reader, "garbled/invisible_text_layer.pdf")
    assert evidence["blocks"]
    assert "Invisible OCR text" in evidence["invisible_text"]
