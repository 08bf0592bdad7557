"""ocr: reads the image of a page whose native text is not good enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.domain import PageResult, PageTask, StageName, TextSource, Verdict
from pipeline.errors import EngineUnavailable
from pipeline.failpoints import reached
from pipeline.page_text import PageText, TextBlock, facts, join_blocks, load_page_text
from pipeline.protocols import ObjectStore, OcrEngine
from pipeline.stages.page_stage import PageStage


class OcrStage(PageStage):
    name = StageName.OCR

    def __init__(self, store: ObjectStore, engine: OcrEngine) -> None:
        self._store = store
        self._engine = engine

    def process_page(self, task: PageTask) -> PageResult:
        if task.options["engine"] != self._engine.name:
            raise EngineUnavailable(
                f"{task.where} is to be read by {task.options['engine']}, but this worker has "
                f"{self._engine.name}: start workers with the profile's settings"
            )
        judged = load_page_text(self._store.get(task.inputs["text"]))
        image = self._store.get(task.inputs["image"])
        reached("ocr.got")
        record = self._read(image, judged, task.options)
        return PageResult(task=task, artifacts={"text": (record.dump(), ".json")}, facts=facts(record))

    def _read(self, image: bytes, judged: PageText, options: Mapping[str, Any]) -> PageText:
        """The judged record with the text that OCR found; a page with ink and no text is unreadable."""
        lines = [line for line in self._engine.read(image) if line[2] >= options["min_confidence"]]
        blocks = tuple(TextBlock(bbox=bbox, text=text) for bbox, text, _ in lines)
        confidence = sum(line[2] for line in lines) / len(lines) if lines else 0.0
        found = {
            "source": TextSource.OCR,
            "score": round(confidence, 4),
            "blocks": blocks,
            "text": join_blocks(blocks),
        }
        if not lines:
            reasons = (*judged.reasons, "OCR found no text")
            found |= {"verdict": Verdict.UNREADABLE, "source": TextSource.NONE, "reasons": reasons}
        return judged.model_copy(update=found)
