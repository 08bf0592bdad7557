"""The evidence of a page's native text: what it says, where in the picture, and what speaks against it.

UTF-8 JSON, the same bytes for the same page, file and options. Boxes are ``[x0, y0, x1, y1]`` in pixels of
the stored image, as a viewer shows it: after rotation, CropBox and scaling.

    page_index, label, width, height, dpi, rotation
    blocks          visible text in the parser's reading order: {bbox, lines: [{bbox, text, size in points}]}
    glyphs          counts without white space: visible; of these unmapped (no Unicode is known, what stands
                    in the text is a glyph's number), replacement (U+FFFD of the file itself), private_use,
                    control (stripped from the text); and invisible
    invisible_text  lines that are not painted: an OCR layer, or junk
    images          [{bbox}]; image_share of the page's area, 0..1; drawings: vector paths, capped
    ink             share (of the page's pixels), uncovered (share of the ink outside visible lines' boxes)
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pymupdf

from pipeline.errors import TextTooLarge
from pipeline.pdf.geometry import Picture
from pipeline.pdf.graphics import Graphics
from pipeline.pdf.ink import Bytes, measure_ink
from pipeline.pdf.text_layer import TextLayer


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceBounds:
    text_bytes: int
    evidence_bytes: int


def gather_evidence(
    display_list: pymupdf.DisplayList,
    picture: Picture,
    pixels: Bytes,
    *,
    facts: dict[str, Any],
    bounds: EvidenceBounds,
) -> bytes:
    """The JSON above; `facts` are the fields that are known without looking. Raises `TextTooLarge`."""
    text = TextLayer(display_list, picture, bounds.text_bytes)
    graphics = Graphics(display_list, picture)
    ink = measure_ink(pixels, text.boxes)
    evidence = {
        **facts,
        "width": picture.width,
        "height": picture.height,
        "dpi": picture.dpi,
        "blocks": text.blocks,
        "glyphs": dataclasses.asdict(text.glyphs),
        "invisible_text": text.invisible_text,
        "images": [{"bbox": box} for box in graphics.images],
        "image_share": round(graphics.image_share, 4),
        "drawings": graphics.drawings,
        "ink": {"share": round(ink.share, 6), "uncovered": round(ink.uncovered, 4)},
    }
    return _encode(evidence, bounds.evidence_bytes)


def _encode(evidence: dict[str, Any], most_bytes: int) -> bytes:
    encoded = json.dumps(evidence, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    if len(encoded) > most_bytes:
        raise TextTooLarge(
            f"the page's text with its boxes has {len(encoded):,} bytes; limits.text_bytes is too low for it"
        )
    return encoded
