"""Printed page labels, as /PageLabels defines them (ISO 32000-1, 12.4.2).

PyMuPDF's own reader of these rules splits them at slashes and knows neither UTF-16 prefixes nor deeper trees.
"""

from __future__ import annotations

import dataclasses

from pymupdf import mupdf

from pipeline.pdf.words import clean_line

_MOST_NODES = 2_000
_MOST_RULES = 20_000
_LONGEST = 64
_ROMAN = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl")),
    *((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LabelRule:
    """Holds from page `first` up to the next rule: prefix, then a number in `style` counting from `start`."""

    first: int
    style: str
    prefix: str
    start: int

    def label(self, page_index: int) -> str:
        return (self.prefix + format_number(self.style, self.start + page_index - self.first))[:_LONGEST]


def page_labels(pdf: mupdf.PdfDocument, page_count: int) -> list[str]:
    """One label a page; ``""`` where no rule reaches. Time grows with pages plus rules."""
    rules = {rule.first: rule for rule in _read_rules(pdf)}
    labels, rule = [], None
    for index in range(page_count):
        rule = rules.get(index, rule)
        labels.append(rule.label(index) if rule else "")
    return labels


def format_number(style: str, number: int) -> str:
    """`style` is a PDF name: D, r, R, a, A, or anything else for no number. Letters go A…Z, AA, BB …"""
    if style == "D":
        return str(number)
    if number < 1 or number > 100_000:
        return ""
    if style in ("r", "R"):
        return _upper_if(style == "R", _roman(number))
    if style in ("a", "A"):
        times, letter = divmod(number - 1, 26)
        return _upper_if(style == "A", chr(ord("a") + letter) * min(_LONGEST, times + 1))
    return ""


def _upper_if(upper: bool, text: str) -> str:
    return text.upper() if upper else text


def _roman(number: int) -> str:
    numeral = ""
    for value, letters in _ROMAN:
        count, number = divmod(number, value)
        numeral += letters * count
    return numeral


def _read_rules(pdf: mupdf.PdfDocument) -> list[LabelRule]:
    """Of all nodes of the number tree, up to so many of each that a loop in the tree ends soon."""
    root = mupdf.pdf_dict_gets(mupdf.pdf_trailer(pdf), "Root")
    nodes, rules = [mupdf.pdf_dict_gets(root, "PageLabels")], list[LabelRule]()
    for node in nodes:  # grows while it is walked
        nodes += _elements(mupdf.pdf_dict_gets(node, "Kids"), _MOST_NODES - len(nodes))
        pairs = _elements(mupdf.pdf_dict_gets(node, "Nums"), 2 * (_MOST_RULES - len(rules)))
        rules += [_rule(mupdf.pdf_to_int(first), entry) for first, entry in zip(pairs[::2], pairs[1::2], strict=False)]
    return rules


def _elements(array: mupdf.PdfObj, most: int) -> list[mupdf.PdfObj]:
    return [mupdf.pdf_array_get(array, at) for at in range(min(mupdf.pdf_array_len(array), most))]


def _rule(first: int, entry: mupdf.PdfObj) -> LabelRule:
    start = mupdf.pdf_dict_gets(entry, "St")
    return LabelRule(
        first=first,
        style=mupdf.pdf_to_name(mupdf.pdf_dict_gets(entry, "S")),
        prefix=clean_line(mupdf.pdf_to_text_string(mupdf.pdf_dict_gets(entry, "P"))),
        start=mupdf.pdf_to_int(start) if mupdf.pdf_is_int(start) else 1,
    )
