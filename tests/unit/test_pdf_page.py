# mypy: untyped-calls-exclude=pymupdf
"""A page's image and the evidence of its text: the boxes lie on the ink, the counts say what speaks against it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pymupdf
import pytest
from PIL import Image

from pipeline import errors
from pipeline.pdf import PdfReader, RenderedPage
from pipeline.pdf.ink import measure_ink
from pipeline.settings import PdfLimits, RenderOptions

PNG = RenderOptions(dpi=144, image_format="png")
A4 = (595, 842)


@pytest.fixture(scope="module")
def reader() -> Iterator[PdfReader]:
    with PdfReader(PdfLimits()) as reader:
        yield reader


def read(
    reader: PdfReader, document: pymupdf.Document, path: Path, options: RenderOptions = PNG
) -> tuple[RenderedPage, dict[str, Any]]:
    """Page 0 and its evidence."""
    document.save(path)
    (page,) = reader.pages(path, [0], options)
    assert isinstance(page, RenderedPage), page
    return page, json.loads(page.evidence)


def pixels(page: RenderedPage) -> npt.NDArray[np.int16]:
    return np.asarray(Image.open(io.BytesIO(page.image)).convert("L"), dtype=np.int16)


def new_page(width: float = 300, height: float = 200) -> pymupdf.Page:
    document = pymupdf.open()
    return document.new_page(width=width, height=height)


def lines(evidence: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for block in evidence["blocks"] for line in block["lines"]]


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize(
    ("mediabox", "cropbox"),
    [
        ((0, 0, 300, 200), None),
        ((50, 7.8, 350, 207.8), None),
        ((-30, -20, 270, 180), (0, 10, 250, 150)),
        ((0, 0, 300, 200), (13.3, 21.7, 281, 190)),
    ],
)
def test_the_box_of_a_line_is_where_its_ink_is(
    reader: PdfReader,
    tmp_path: Path,
    rotation: int,
    mediabox: tuple[float, ...],
    cropbox: tuple[float, ...] | None,
) -> None:
    document = pymupdf.open()
    page = document.new_page(width=300, height=200)
    page.insert_text((60, 80), "upper left words", fontsize=9)
    xref = page.xref
    document.xref_set_key(xref, "MediaBox", str(list(mediabox)).replace(",", " "))
    if cropbox:
        document.xref_set_key(xref, "CropBox", str(list(cropbox)).replace(",", " "))
    document.xref_set_key(xref, "Rotate", str(rotation))
    rendered, evidence = read(reader, document, tmp_path / "a.pdf")
    (line,) = lines(evidence)
    x0, y0, x1, y1 = line["bbox"]
    rows, columns = np.nonzero(pixels(rendered) < 128)
    assert rows.size > 100
    assert (x0 - 2, y0 - 2) <= (columns.min(), rows.min())
    assert columns.max() <= x1 + 2
    assert rows.max() <= y1 + 2
    along, across = (columns, rows) if rotation % 180 == 0 else (rows, columns)
    length, thickness = (x1 - x0, y1 - y0) if rotation % 180 == 0 else (y1 - y0, x1 - x0)
    assert np.ptp(along) > 0.9 * length
    assert np.ptp(across) > 0.4 * thickness
    assert evidence["rotation"] == rotation
    assert evidence["ink"]["uncovered"] == 0


def test_image_and_evidence_agree_on_size_and_resolution(reader: PdfReader, tmp_path: Path) -> None:
    rendered, evidence = read(reader, new_page(*A4).parent, tmp_path / "a.pdf", RenderOptions(dpi=150))
    assert rendered.image_suffix == ".jpg"
    assert Image.open(io.BytesIO(rendered.image)).size == (rendered.width, rendered.height)
    assert (evidence["width"], evidence["height"], evidence["dpi"]) == (rendered.width, rendered.height, 150)
    assert abs(rendered.width - A4[0] * 150 / 72) < 2


@pytest.mark.parametrize(("image_format", "suffix"), [("jpeg", ".jpg"), ("webp", ".webp"), ("png", ".png")])
def test_every_format_says_its_name(reader: PdfReader, tmp_path: Path, image_format: Any, suffix: str) -> None:
    options = RenderOptions(dpi=72, image_format=image_format)
    rendered, _ = read(reader, new_page().parent, tmp_path / "a.pdf", options)
    assert rendered.image_suffix == suffix
    assert Image.open(io.BytesIO(rendered.image)).format == image_format.upper()


@pytest.mark.parametrize("size", [(8400, 8400), (14_400, 10), (3000.5, 1999.7)])
def test_a_large_page_is_drawn_within_the_pixel_cap(
    reader: PdfReader, tmp_path: Path, size: tuple[float, float]
) -> None:
    options = RenderOptions(dpi=600, max_pixels=100_000)
    rendered, _ = read(reader, new_page(*size).parent, tmp_path / "a.pdf", options)
    assert rendered.width * rendered.height <= 100_000
    assert rendered.dpi < 600


def test_a_page_longer_than_the_limit_is_page_size_and_costs_nothing(reader: PdfReader, tmp_path: Path) -> None:
    page = new_page(1800, 3600)
    page.parent.xref_set_key(page.xref, "UserUnit", "10")
    page.parent.save(tmp_path / "a.pdf")
    (result,) = reader.pages(tmp_path / "a.pdf", [0], PNG)
    assert isinstance(result, errors.PageSize)
    assert "500" in result.message


@pytest.mark.parametrize("box", ["[0 0 0 0]", "null", "[200 100 0 0]", "[0 0 1e39 1e39]", "[0 0 300 0.5]", "[]"])
def test_an_absurd_page_has_a_size_or_is_page_size(reader: PdfReader, tmp_path: Path, box: str) -> None:
    page = new_page()
    page.parent.xref_set_key(page.xref, "MediaBox", box)
    page.parent.save(tmp_path / "a.pdf")
    (result,) = reader.pages(tmp_path / "a.pdf", [0], PNG)
    assert isinstance(result, errors.PageSize | RenderedPage)
    assert isinstance(result, errors.PageSize) or min(result.width, result.height) > 0


def test_hidden_text_is_kept_apart_from_what_is_painted(reader: PdfReader, tmp_path: Path) -> None:
    page = new_page()
    page.insert_text((20, 50), "seen words")
    page.insert_text((20, 90), "hidden layer", render_mode=3)
    _, evidence = read(reader, page.parent, tmp_path / "a.pdf")
    assert [line["text"] for line in lines(evidence)] == ["seen words"]
    assert evidence["invisible_text"] == "hidden layer"
    assert (evidence["glyphs"]["visible"], evidence["glyphs"]["invisible"]) == (9, 11)


def test_odd_characters_are_counted_and_controls_are_stripped(reader: PdfReader, tmp_path: Path) -> None:
    """Code 7 has no Unicode (the parser then says the code), `b` a private one, `c` its own."""
    page = new_page()
    page.insert_text((20, 50), "x")
    cmap = page.parent.get_new_xref()
    page.parent.update_object(cmap, "<<>>")
    ranges = b"1 begincodespacerange <00><ff> endcodespacerange"
    page.parent.update_stream(cmap, b"begincmap " + ranges + b" 2 beginbfchar <62><e001> <63><0063> endbfchar endcmap")
    page.parent.xref_set_key(page.get_fonts()[0][0], "ToUnicode", f"{cmap} 0 R")
    page.parent.update_stream(page.get_contents()[0], b"BT /helv 12 Tf 20 50 Td (\\007bc) Tj ET")
    _, evidence = read(reader, page.parent, tmp_path / "a.pdf")
    glyphs = evidence["glyphs"]
    assert {key: glyphs[key] for key in ("visible", "unmapped", "private_use", "control")} == {
        "visible": 3,
        "unmapped": 1,
        "private_use": 1,
        "control": 1,
    }
    assert [line["text"] for line in lines(evidence)] == ["\ue001c"]


def test_a_blank_page_has_no_ink(reader: PdfReader, tmp_path: Path) -> None:
    _, evidence = read(reader, new_page().parent, tmp_path / "a.pdf")
    assert evidence["ink"] == {"share": 0, "uncovered": 0}
    assert evidence["glyphs"]["visible"] == 0


def test_a_single_hairline_is_ink_that_no_text_covers(reader: PdfReader, tmp_path: Path) -> None:
    page = new_page(*A4)
    page.draw_line((50, 400), (545, 400), width=0.5)
    _, evidence = read(reader, page.parent, tmp_path / "a.pdf", RenderOptions(dpi=150))
    assert evidence["ink"]["share"] > 0.0002
    assert evidence["ink"]["uncovered"] == 1
    assert evidence["drawings"] == 1


def test_overlapping_images_count_once(reader: PdfReader, tmp_path: Path) -> None:
    page = new_page(200, 100)
    picture = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.IRect(0, 0, 4, 4), False)
    picture.clear_with(128)
    for left in (0, 50):
        page.insert_image((left, 0, left + 100, 100), pixmap=picture, keep_proportion=False)
    _, evidence = read(reader, page.parent, tmp_path / "a.pdf")
    assert evidence["image_share"] == pytest.approx(0.75, abs=0.01)
    assert [image["bbox"] for image in evidence["images"]] == [[0, 0, 200, 200], [100, 0, 300, 200]]


def test_more_text_than_the_limit_is_text_too_large(tmp_path: Path) -> None:
    page = new_page()
    page.insert_text((20, 50), "more than ten bytes")
    page.parent.save(tmp_path / "a.pdf")
    with PdfReader(PdfLimits(text_bytes=10)) as reader:
        (result,) = reader.pages(tmp_path / "a.pdf", [0], PNG)
    assert isinstance(result, errors.TextTooLarge)


def test_the_same_page_gives_the_same_bytes_whatever_came_before(tmp_path: Path) -> None:
    document = pymupdf.open()
    for index in range(3):
        page = document.new_page(width=200, height=100)
        page.insert_text((20, 50), f"page {index}")
    document.save(tmp_path / "a.pdf")
    with PdfReader(PdfLimits()) as one, PdfReader(PdfLimits()) as other:
        forwards = list(one.pages(tmp_path / "a.pdf", [0, 1, 2], PNG))
        backwards = list(other.pages(tmp_path / "a.pdf", [2, 1, 0], PNG))
    assert forwards == backwards[::-1]


@pytest.mark.parametrize("paper", [255, 128, 0])
def test_ink_is_what_differs_from_the_paper(paper: int) -> None:
    picture = np.full((400, 500, 3), paper, dtype=np.uint8)
    picture[100:140, :250] = (paper + 128) % 256
    ink = measure_ink(picture, [(0, 100, 125, 140)])
    assert ink.share == pytest.approx(0.05, abs=0.001)
    assert ink.uncovered == pytest.approx(0.5, abs=0.01)
    assert measure_ink(np.full((3, 3, 3), paper, dtype=np.uint8), []).share == 0
