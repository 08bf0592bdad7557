"""OCR by RapidOCR: PP-OCR models that lie in its wheel, run by onnxruntime on the CPU. No download."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from rapidocr import RapidOCR

from pipeline.errors import OcrFailed

Line = tuple[tuple[float, float, float, float], str, float]


class RapidOcrEngine:
    """Chinese and English print. About 900 MB of memory."""

    name = "rapidocr"

    def __init__(self, threads: int = 2) -> None:
        """`threads` of onnxruntime for one page. Raises nothing: models are loaded from the installed wheel."""
        logging.getLogger("RapidOCR").setLevel(logging.WARNING)
        self._engine = RapidOCR(
            params={
                "Global.log_level": "warning",
                "Global.use_cls": False,
                "EngineConfig.onnxruntime.intra_op_num_threads": threads,
            }
        )

    def read(self, image: bytes) -> Sequence[Line]:
        """Lines from top to bottom, as the detector orders them."""
        try:
            with Image.open(io.BytesIO(image)) as opened:
                pixels = np.asarray(opened.convert("RGB"))[:, :, ::-1]  # the models were trained on BGR
            found: Any = self._engine(pixels)
        except (ValueError, RuntimeError, OSError) as error:
            raise OcrFailed(f"RapidOCR could not read the page: {error}") from error
        if found.boxes is None:
            return []
        return [
            (_rectangle(box), text, float(score))
            for box, text, score in zip(found.boxes, found.txts, found.scores, strict=True)
        ]


def _rectangle(quad: npt.NDArray[np.float32]) -> tuple[float, float, float, float]:
    """The upright box around a quadrilateral of shape (4, 2)."""
    (x0, y0), (x1, y1) = quad.min(axis=0), quad.max(axis=0)
    return round(float(x0), 1), round(float(y0), 1), round(float(x1), 1), round(float(y1), 1)
