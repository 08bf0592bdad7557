"""The text record of a page: what is indexed of it, where it came from and how far it is to be trusted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline.domain import TextSource, Verdict
from pipeline.identity import canonical

Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in pixels of the stored image."""


class TextBlock(BaseModel):
    model_config = ConfigDict(frozen=True)

    bbox: Box
    text: str


class PageText(BaseModel):
    """One page's text. `verdict` judges the native text layer; `source` says which text this is.

    A page whose verdict is neither good nor blank has no text here until OCR has read it.
    """

    model_config = ConfigDict(frozen=True)

    verdict: Verdict
    source: TextSource
    score: float
    """0–1: how much the judge trusts this text."""
    reasons: tuple[str, ...]
    label: str
    width: int
    height: int
    blocks: tuple[TextBlock, ...]
    text: str

    @property
    def needs_ocr(self) -> bool:
        return self.source == TextSource.NONE and self.verdict in (Verdict.GARBLED, Verdict.NO_TEXT)

    def dump(self) -> bytes:
        """The artifact: canonical JSON, equal records give equal bytes."""
        return canonical(self.model_dump(mode="json"))


def load_page_text(content: bytes) -> PageText:
    return PageText.model_validate(json.loads(content))


def join_blocks(blocks: Sequence[TextBlock]) -> str:
    return "\n".join(block.text for block in blocks if block.text.strip())


def facts(record: PageText) -> dict[str, Any]:
    """What later steps decide by, kept in the task's row."""
    return {
        "verdict": record.verdict.value,
        "source": record.source.value,
        "score": record.score,
        "reasons": list(record.reasons),
        "needs_ocr": record.needs_ocr,
        "chars": len(record.text),
    }
