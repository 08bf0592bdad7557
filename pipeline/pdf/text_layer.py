# mypy: untyped-calls-exclude=pymupdf
"""A page's native text: what is painted, what is hidden, and how far its characters are known."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pymupdf
from pymupdf import mupdf

from pipeline.errors import TextTooLarge
from pipeline.pdf.geometry import Box, Picture, union
from pipeline.pdf.words import clean_text, count_controls

_PAINTED = mupdf.FZ_STEXT_FILLED | mupdf.FZ_STEXT_STROKED | mupdf.FZ_STEXT_CLIPPED
_UNMAPPED = mupdf.FZ_STEXT_UNICODE_IS_CID | mupdf.FZ_STEXT_UNICODE_IS_GID
"""Set where a character has no Unicode, and then up to the end of its text object, so it cannot be counted."""
_AS_CODES = pymupdf.TEXTFLAGS_TEXT
"""A character without Unicode appears as its code in the font."""
_AS_REPLACEMENT = _AS_CODES & ~pymupdf.TEXT_CID_FOR_UNKNOWN_UNICODE
"""It appears as U+FFFD, like those that the file itself says."""
_PRIVATE_USE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010ffff]")

Span = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Glyphs:
    """Counts of characters, white space not counted. All but `invisible` are parts of `visible`."""

    visible: int
    unmapped: int
    replacement: int
    private_use: int
    control: int
    invisible: int


class TextLayer:
    """Read from a page's display list, a second time only where characters without Unicode have to be counted.

    Raises `TextTooLarge` over `most_bytes` of UTF-8.
    """

    def __init__(self, display_list: pymupdf.DisplayList, picture: Picture, most_bytes: int) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._picture = picture
        self._visible: list[str] = []
        self._hidden: list[str] = []
        self._has_unmapped = False
        for spans_by_line in _extract(display_list, _AS_CODES):
            self._read_block(spans_by_line)
        self._check_size(most_bytes)
        self.glyphs = self._count(display_list)

    @property
    def boxes(self) -> list[Box]:
        """Of the visible lines, in pixels."""
        return [line["bbox"] for block in self.blocks for line in block["lines"]]

    @property
    def invisible_text(self) -> str:
        return "\n".join(self._hidden)

    def _read_block(self, spans_by_line: list[list[Span]]) -> None:
        visible = [line for spans in spans_by_line if (line := self._read_line(spans))]
        if visible:
            self.blocks.append({"bbox": union(line["bbox"] for line in visible), "lines": visible})

    def _read_line(self, spans: list[Span]) -> dict[str, Any] | None:
        """The visible part of a line, if it says anything."""
        painted, hidden = _part(spans)
        if hidden and (text := clean_text(_join(hidden)).strip()):
            self._hidden.append(text)
        raw = _join(painted)
        self._visible.append(raw)
        self._has_unmapped = self._has_unmapped or any(span["char_flags"] & _UNMAPPED for span in painted)
        text = clean_text(raw)
        if not text.strip():
            return None
        return {
            "bbox": self._picture.box(union(span["bbox"] for span in painted)),
            "text": text,
            "size": round(max(painted, key=_length)["size"], 1),
        }

    def _check_size(self, most_bytes: int) -> None:
        size = sum(len(text.encode("utf-8", "replace")) for text in (*self._visible, *self._hidden))
        if size > most_bytes:
            raise TextTooLarge(f"the page has {size:,} bytes of text; limits.text_bytes is {most_bytes:,}")

    def _count(self, display_list: pymupdf.DisplayList) -> Glyphs:
        """Without Unicode are the U+FFFD that appear with one way of extraction only: shared by both are those
        that the file itself says (pymupdf/PyMuPDF#2954, #2609)."""
        shown = "".join(self._visible)
        known = _painted_text(display_list, _AS_REPLACEMENT) if self._has_unmapped else shown
        replacement = shown.count("�")
        return Glyphs(
            visible=_printing(known),
            unmapped=max(0, known.count("�") - replacement),
            replacement=replacement,
            private_use=len(_PRIVATE_USE.findall(known)),
            control=count_controls(shown),
            invisible=sum(map(_printing, self._hidden)),
        )


def _extract(display_list: pymupdf.DisplayList, flags: int) -> list[list[list[Span]]]:
    """Blocks of lines of spans, in the parser's reading order."""
    content = pymupdf.TextPage(display_list.get_textpage(flags)).extractDICT()
    return [[line["spans"] for line in block["lines"]] for block in content["blocks"]]


def _painted_text(display_list: pymupdf.DisplayList, flags: int) -> str:
    return "".join(_join(_part(spans)[0]) for block in _extract(display_list, flags) for spans in block)


def _part(spans: list[Span]) -> tuple[list[Span], list[Span]]:
    """Painted spans and hidden ones; white space goes with what stands before it."""
    painted: list[Span] = []
    hidden: list[Span] = []
    into = painted
    for span in spans:
        if not span["text"].isspace():
            into = painted if span["char_flags"] & _PAINTED and span["alpha"] else hidden
        into.append(span)
    return painted, hidden


def _join(spans: list[Span]) -> str:
    return "".join(span["text"] for span in spans)


def _length(span: Span) -> int:
    return len(span["text"])


def _printing(text: str) -> int:
    return len(text) - sum(map(text.count, " \n\t\r\u00a0\u3000"))
