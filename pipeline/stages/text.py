"""text: is the page's native text good enough to be trusted?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.domain import PageResult, PageTask, StageName, TextSource, Verdict
from pipeline.failpoints import reached
from pipeline.page_text import PageText, TextBlock, facts, join_blocks
from pipeline.protocols import ObjectStore
from pipeline.stages.page_stage import PageStage

Judgement = tuple[Verdict, float, tuple[str, ...]]


class TextStage(PageStage):
    name = StageName.TEXT

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def process_page(self, task: PageTask) -> PageResult:
        evidence = json.loads(self._store.get(task.inputs["evidence"]))
        reached("text.got")
        record = read_native(evidence, task.options)
        return PageResult(task=task, artifacts={"text": (record.dump(), ".json")}, facts=facts(record))


def read_native(evidence: Mapping[str, Any], options: Mapping[str, Any]) -> PageText:
    """The text record of a page from the evidence that `render` took. `options` are those of `TextOptions`."""
    verdict, score, reasons = judge(evidence, options)
    good = verdict == Verdict.GOOD
    blocks = tuple(_block(block) for block in evidence["blocks"]) if good else ()
    return PageText(
        verdict=verdict,
        source=TextSource.NATIVE if good else TextSource.NONE,
        score=score,
        reasons=reasons,
        label=evidence["label"],
        width=evidence["width"],
        height=evidence["height"],
        blocks=blocks,
        text=join_blocks(blocks),
    )


def judge(evidence: Mapping[str, Any], options: Mapping[str, Any]) -> Judgement:
    """Verdict, trust (0–1) and the reasons in words.

    What counts against a text is glyphs that the file itself cannot name, not odd characters: dot leaders and
    symbol bullets are healthy. Few characters count only where a picture fills the page.
    """
    glyphs, ink = evidence["glyphs"], evidence["ink"]["share"]
    visible = glyphs["visible"]
    if visible == 0 and ink < options["min_ink"]:
        return Verdict.BLANK, 1.0, (f"no visible text and {ink:.4%} ink",)
    if visible == 0:
        return Verdict.NO_TEXT, 0.0, (f"no visible text on a page with {ink:.2%} ink",)
    if options["force_ocr"]:
        return Verdict.GARBLED, 0.0, ("OCR is forced by the profile",)
    unmapped = glyphs["unmapped"] / visible
    if unmapped > options["max_unmapped"]:
        return Verdict.GARBLED, 1 - unmapped, (f"{unmapped:.0%} of the glyphs have no Unicode mapping",)
    image_share = evidence["image_share"]
    if visible < options["stamp_chars"] and image_share > options["stamp_image_share"]:
        return Verdict.NO_TEXT, 0.0, (f"{visible} characters on a picture of {image_share:.0%} of the page",)
    return Verdict.GOOD, 1 - unmapped, ()


def _block(block: Mapping[str, Any]) -> TextBlock:
    return TextBlock(bbox=block["bbox"], text="\n".join(line["text"] for line in block["lines"]))
