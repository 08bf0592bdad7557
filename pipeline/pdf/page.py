# mypy: untyped-calls-exclude=pymupdf
"""One page of an opened PDF: its image, and the evidence of its text, from one reading of its content."""

from __future__ import annotations

import dataclasses
import io
import math
from typing import Any

import numpy as np
import pymupdf
from PIL import Image

from pipeline.errors import PageSize
from pipeline.pdf.document import OpenPdf
from pipeline.pdf.evidence import EvidenceBounds, gather_evidence
from pipeline.pdf.geometry import Picture

_SUFFIX = {"jpeg": ".jpg", "webp": ".webp", "png": ".png"}
_LONGEST_PIXELS = {"jpeg": 65_500, "webp": 16_383, "png": 65_500}
"""A side's limit in the format itself."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PageOptions:
    """As the parent sends them: `RenderOptions`, and the limits that hold for a page."""

    dpi: int
    max_pixels: int
    image_format: str
    quality: int
    longest_side_in: float
    text_bytes: int
    evidence_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PageReading:
    picture: Picture
    suffix: str
    image: bytes
    evidence: bytes


def read_page(pdf: OpenPdf, index: int, options: PageOptions) -> PageReading:
    """Image and evidence of page `index`.

    Raises `PageBroken`, `PageSize` (before a pixel is drawn), `TextTooLarge`, and whatever the parser raises.
    """
    page = pdf.load(index)
    picture = plan_picture(tuple(page.rect), options)
    display_list = page.get_displaylist()
    pixmap = display_list.get_pixmap(matrix=pymupdf.Matrix(picture.scale, picture.scale), alpha=False)
    picture = dataclasses.replace(picture, width=pixmap.width, height=pixmap.height)
    evidence = gather_evidence(
        display_list,
        picture,
        np.frombuffer(pixmap.samples_mv, dtype=np.uint8).reshape(pixmap.height, pixmap.width, 3),
        facts={"page_index": index, "label": pdf.label(index), "rotation": page.rotation},
        bounds=EvidenceBounds(text_bytes=options.text_bytes, evidence_bytes=options.evidence_bytes),
    )
    return PageReading(
        picture=picture,
        suffix=_SUFFIX[options.image_format],
        image=encode_image(pixmap, options.image_format, options.quality),
        evidence=evidence,
    )


def plan_picture(rect: tuple[float, ...], options: PageOptions) -> Picture:
    """The resolution asked for, or the highest that keeps within `max_pixels` and the format.

    `rect` is in points, after rotation and UserUnit. Raises `PageSize` for a side that is zero, not a number,
    or longer than `longest_side_in`.
    """
    left, top, right, bottom = rect
    width, height = right - left, bottom - top
    if not (math.isfinite(width) and math.isfinite(height) and width > 0 and height > 0):
        raise PageSize(f"the page is {width:g} x {height:g} points: there is nothing to draw")
    longest_in = max(width, height) / 72
    if longest_in > options.longest_side_in:
        raise PageSize(
            f"the page is {longest_in:.2f} in long; limits.longest_side_in allows {options.longest_side_in:g}"
        )
    scale = _scale(width, height, options)
    size = {"width": _pixels(width, scale), "height": _pixels(height, scale)}
    return Picture(**size, left=left, top=top, scale=scale)


def _scale(width: float, height: float, options: PageOptions) -> float:
    """Pixels a point. A partly covered row or column is one more pixel, so the last step is by trial."""
    longest = _LONGEST_PIXELS[options.image_format]
    scale = min(options.dpi / 72, math.sqrt(options.max_pixels / (width * height)), (longest - 1) / max(width, height))
    while _pixels(width, scale) * _pixels(height, scale) > options.max_pixels:
        scale *= 0.999
    return scale


def _pixels(side: float, scale: float) -> int:
    return math.ceil(side * scale - 1e-3) or 1


def encode_image(pixmap: pymupdf.Pixmap, image_format: str, quality: int) -> bytes:
    """From the pixmap's own memory; Pixmap.tobytes takes ten times as long."""
    size = (pixmap.width, pixmap.height)
    image = Image.frombuffer("RGB", size, pixmap.samples_mv, "raw", "RGB", 0, 1)
    target = io.BytesIO()
    image.save(target, image_format, **_encoder_options(image_format, quality))
    return target.getvalue()


def _encoder_options(image_format: str, quality: int) -> dict[str, Any]:
    if image_format == "png":
        return {"compress_level": 1}
    if image_format == "webp":
        return {"quality": quality, "method": 0}
    return {"quality": quality}
