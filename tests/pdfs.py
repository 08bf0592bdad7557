"""Small PDFs for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pymupdf


def write_pdf(path: Path, pages: Sequence[str]) -> Path:
    """A PDF with one line of native text a page; an empty string gives a blank page."""
    with pymupdf.open() as document:
        for text in pages:
            page = document.new_page()
            if text:
                page.insert_text((72, 100), text, fontsize=12)
        document.save(path, no_new_id=True)
    return path


def write_scan(path: Path, lines: Sequence[str]) -> Path:
    """A PDF of one page that is only a picture of the lines."""
    with pymupdf.open() as drawn, pymupdf.open() as document:
        page = drawn.new_page()
        for number, line in enumerate(lines):
            page.insert_text((72, 100 + 30 * number), line, fontsize=16)
        picture = page.get_pixmap(dpi=150)
        document.new_page().insert_image(page.rect, pixmap=picture)
        document.save(path, no_new_id=True)
    return path
