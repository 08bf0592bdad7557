"""Writes the sample documents: a bilingual manual, a policy, Chinese rules, questions, and hostile files.

usage: python -m scripts.samples FOLDER

The only module outside pipeline/pdf that may import pymupdf, and only inside functions.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.sample_texts import (
    ELECTRICAL_RULES,
    ELECTRICAL_RULES_FILE,
    MANUAL,
    MANUAL_FILE,
    MANUAL_FRONT_MATTER,
    POLICY,
    POLICY_FILE,
    QUESTIONS,
    Block,
    Drawing,
    Line,
    Page,
    Rows,
    Scan,
)

QUESTIONS_FILE = "questions.jsonl"
EMPTY_FILE = "empty.pdf"
HTML_FILE = "web-page.pdf"
TRUNCATED_FILE = "truncated.pdf"
ENCRYPTED_FILE = "encrypted.pdf"
BROKEN_PAGE_FILE = "broken-page.pdf"
BROKEN_PAGE = 1  # of four; the other three are good

WIDTH, HEIGHT, MARGIN = 595.0, 842.0, 56.0  # A4 in points
HEADING, TEXT, CELL = 15.0, 10.5, 9.0  # font sizes in points
TOKEN = re.compile(r"[^\s\u2e80-\uffff]+\s*|.[，。；：、）”]*")  # a Latin word, or one Chinese character


class Canvas:
    """One page that fills from the top; every character is drawn with the one font given."""

    def __init__(self, page: Any, font: Any) -> None:
        self.page = page
        self.font = font
        self.writer = _pymupdf().TextWriter(page.rect)
        self.top = MARGIN

    def draw(self, blocks: tuple[Block, ...], label: str) -> None:
        """Draws the blocks and, below them, the page's printed label."""
        for block in blocks:
            self.draw_block(block)
        if blocks:
            self.text((WIDTH - self.font.text_length(label, TEXT)) / 2, HEIGHT - MARGIN / 2, label, TEXT)
        self.writer.write_text(self.page)

    def draw_block(self, block: Block) -> None:
        match block:
            case Drawing():
                self.drawing(block)
            case tuple():
                self.table(block)
            case _ if block.startswith("# "):
                self.paragraph(block[2:], HEADING)
            case _:
                self.paragraph(block, TEXT)

    def text(self, x: float, y: float, text: str, size: float) -> None:
        self.writer.append((x, y), text, font=self.font, fontsize=size)

    def wrapped(self, text: str, size: float, width: float) -> Iterator[str]:
        """The lines of a text, each no wider than `width` points."""
        line = ""
        for token in TOKEN.findall(text):
            if line and self.font.text_length((line + token).rstrip(), size) > width:
                yield line.rstrip()
                line = ""
            line += token
        yield line.rstrip()

    def paragraph(self, text: str, size: float) -> None:
        for line in self.wrapped(text, size, WIDTH - 2 * MARGIN):
            self.top += size * 1.5
            self.text(MARGIN, self.top, line, size)
        self.top += size * 0.8

    def table(self, rows: Rows) -> None:
        columns = zip(*rows, strict=True)
        widths = [max(self.font.text_length(cell, CELL) for cell in column) + 12 for column in columns]
        widths[-1] = min(widths[-1], WIDTH - 2 * MARGIN - sum(widths[:-1]))
        for row in rows:
            self.row(row, widths)
        self.top += CELL * 1.5

    def row(self, row: tuple[str, ...], widths: list[float]) -> None:
        lines = [list(self.wrapped(cell, CELL, width - 10)) for cell, width in zip(row, widths, strict=True)]
        height = 7 + 1.4 * CELL * max(map(len, lines))
        left = MARGIN
        for cell, width in zip(lines, widths, strict=True):
            self.page.draw_rect(_pymupdf().Rect(left, self.top, left + width, self.top + height), width=0.6)
            for number, line in enumerate(cell, 1):
                self.text(left + 5, self.top + 1.4 * CELL * number, line, CELL)
            left += width
        self.top += height

    def drawing(self, drawing: Drawing) -> None:
        scale, left, ground = 0.235, MARGIN + 20, self.top + 320

        def point(x: float, y: float) -> tuple[float, float]:
            return left + scale * x, ground - scale * y

        for x0, y0, x1, y1 in drawing.outlines:
            self.page.draw_polyline([point(*p) for p in ((x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0))])
        for x, y, label in drawing.labels:
            self.text(*point(x, y), label, TEXT)
        for (x0, y0, x1, y1), figure in drawing.dimensions:
            self.dimension((*point(x0, y0), *point(x1, y1)), figure)
        self.top = ground + 90

    def dimension(self, line: Line, figure: str) -> None:
        """A thin line that ends in two strokes, with its measure beside the middle."""
        x0, y0, x1, y1 = line
        self.page.draw_line((x0, y0), (x1, y1), width=0.4)
        for x, y in ((x0, y0), (x1, y1)):
            self.page.draw_line((x - 3, y + 3), (x + 3, y - 3), width=0.8)
        self.text((x0 + x1) / 2 + 4, (y0 + y1) / 2 - 4, figure, CELL)


def _pymupdf() -> Any:
    """The module as Any: its own annotations are partial and fail a strict check."""
    import pymupdf

    return pymupdf


def write_samples(folder: Path) -> list[Path]:
    """Writes three documents and `questions.jsonl` into `folder` and returns the documents' paths.

    The questions have the fields of a query set for `pagegate eval`; relevant pages are 0-based, none means
    that no document answers. Same bytes on every run with the same versions of pymupdf and Pillow.
    """
    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        MANUAL_FILE: _pdf("HX-200", MANUAL, "cjk", MANUAL_FRONT_MATTER),
        POLICY_FILE: _pdf("Lockout and Tagout Policy", POLICY, "helv"),
        ELECTRICAL_RULES_FILE: _pdf("电气安全规程", ELECTRICAL_RULES, "cjk"),
    }
    for name, content in documents.items():
        (folder / name).write_bytes(content)
    lines = (json.dumps(question, ensure_ascii=False) + "\n" for question in _questions())
    (folder / QUESTIONS_FILE).write_text("".join(lines), encoding="utf-8")
    return [folder / name for name in documents]


def write_hostile(folder: Path) -> dict[str, Path]:
    """Writes five files that an intake must survive and returns their paths by file name.

    Empty; HTML named .pdf; cut off, so that it opens with no pages; encrypted with a user password (other
    bytes on each run); four pages of which `BROKEN_PAGE` cannot be loaded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    policy = _pdf("Lockout and Tagout Policy", POLICY, "helv")
    contents = {
        EMPTY_FILE: b"",
        HTML_FILE: b"<!DOCTYPE html>\n<html><body><h1>404</h1><p>This manual has moved.</p></body></html>\n",
        TRUNCATED_FILE: policy[: len(policy) * 6 // 10],
        ENCRYPTED_FILE: _encrypted(policy),
        BROKEN_PAGE_FILE: _broken_page(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


def _questions() -> Iterator[dict[str, Any]]:
    for number, (query, lang, evidence, kind, answer) in enumerate(QUESTIONS, 1):
        relevant = [{"file": evidence[0], "page": evidence[1], "grade": 2}] if evidence else []
        name = f"s{number:02}"
        yield {
            "id": name,
            "query": query,
            "lang": lang,
            "relevant": relevant,
            "kind": kind,
            "group": name,
            "answer": answer,
        }


def _pdf(title: str, pages: tuple[Page, ...], font_name: str, front_matter: int = 0) -> bytes:
    """The pages as a PDF with an embedded, subset font; the first `front_matter` labels are i, ii, …"""
    document = _pymupdf().open()
    document.set_metadata({"title": title, "author": "The Pagegate authors"})
    font = _pymupdf().Font(font_name)
    for _ in pages:
        document.new_page(width=WIDTH, height=HEIGHT)
    document.set_page_labels(_label_rules(front_matter))
    for page, content in zip(document, pages, strict=True):
        _draw(page, content, font)
    document.subset_fonts()
    return bytes(document.tobytes(garbage=4, deflate=True, use_objstms=1, no_new_id=True))


def _label_rules(front_matter: int) -> list[dict[str, Any]]:
    rules = [{"startpage": front_matter, "prefix": "", "style": "D", "firstpagenum": 1}]
    if front_matter:
        rules.insert(0, {"startpage": 0, "prefix": "", "style": "r", "firstpagenum": 1})
    return rules


def _draw(page: Any, content: Page, font: Any) -> None:
    if isinstance(content, Scan):
        scanned = _scanned(content.blocks, page.get_label(), font)
        page.insert_image(page.rect, stream=scanned, keep_proportion=False)
    else:
        Canvas(page, font).draw(content, page.get_label())


def _scanned(blocks: tuple[Block, ...], label: str, font: Any) -> bytes:
    """A JPEG of the printed page as a scanner sees it: grey, 0.6° askew, with noise."""
    from PIL import Image, ImageChops

    page = _pymupdf().open().new_page(width=WIDTH, height=HEIGHT)
    Canvas(page, font).draw(blocks, label)
    print_out = page.get_pixmap(dpi=150, colorspace=_pymupdf().csGRAY)
    size = (print_out.width, print_out.height)
    straight = Image.frombytes("L", size, print_out.samples)
    askew = straight.rotate(0.6, Image.Resampling.BICUBIC, fillcolor=255)
    noise = Image.frombytes("L", size, random.Random(200).randbytes(size[0] * size[1]))  # noqa: S311
    jpeg = io.BytesIO()
    ImageChops.subtract(askew, noise.point(lambda value: value // 8)).save(jpeg, "JPEG", quality=60)
    return jpeg.getvalue()


def _encrypted(content: bytes) -> bytes:
    with _pymupdf().open(stream=content) as document:
        return bytes(
            document.tobytes(
                encryption=_pymupdf().PDF_ENCRYPT_AES_256, user_pw="user", owner_pw="owner", no_new_id=True
            )
        )


def _broken_page() -> bytes:
    """Four pages; the second is a page tree that contains itself, which MuPDF refuses to load."""
    document = _pymupdf().open()
    for number in range(4):
        document.new_page(width=WIDTH, height=HEIGHT).insert_text((MARGIN, MARGIN), f"Good page {number}")
    broken = document.page_xref(BROKEN_PAGE)
    tree = document.xref_get_key(broken, "Parent")[1]
    document.update_object(broken, f"<</Type/Pages/Parent {tree}/Count 1/Kids[{tree}]>>")
    return bytes(document.tobytes(no_new_id=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.samples", description="Write the samples.")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    for path in write_samples(parser.parse_args().folder):
        print(path)


if __name__ == "__main__":
    main()
