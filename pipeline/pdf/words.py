"""Text as a PDF holds it, made fit for JSON, SQL and XML."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def clean_text(text: str) -> str:
    r"""Without control characters other than ``\n`` and ``\t``; lone surrogates become U+FFFD."""
    return _SURROGATES.sub("�", _CONTROLS.sub("", text))


def clean_line(text: str) -> str:
    """`clean_text` on one line: any run of white space is one space, none at the ends."""
    return " ".join(clean_text(text).split())


def count_controls(text: str) -> int:
    return len(_CONTROLS.findall(text))
