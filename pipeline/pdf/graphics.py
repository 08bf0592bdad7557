# mypy: untyped-calls-exclude=pymupdf
"""What a page shows besides text: where its pictures are, and how many paths are drawn."""

from __future__ import annotations

import itertools

import numpy as np
import pymupdf
from pymupdf import mupdf

from pipeline.pdf.geometry import Box, Picture

_FLAGS = mupdf.FZ_STEXT_PRESERVE_IMAGES | mupdf.FZ_STEXT_COLLECT_VECTORS | mupdf.FZ_STEXT_MEDIABOX_CLIP
_MOST_BLOCKS = 20_000
"""Looked at; a page with more is a drawing anyway."""
_MOST_IMAGES = 500
_GRID = 256
"""Overlapping images are joined on a grid of so many cells a side."""


class Graphics:
    """Read once from a page's display list. No picture is decoded for it."""

    def __init__(self, display_list: pymupdf.DisplayList, picture: Picture) -> None:
        self.images: list[Box] = []
        """In pixels, those with an area, at most 500."""
        self.drawings = 0
        """Vector paths, as far as the parser keeps them apart; capped at 20,000."""
        self._size = (picture.width, picture.height)
        # Named, because its blocks point into it and do not keep it: an unnamed one is a segmentation fault.
        blocks = display_list.get_textpage(_FLAGS)
        for block in itertools.islice(blocks, _MOST_BLOCKS):
            kind = block.m_internal.type
            if kind == mupdf.FZ_STEXT_BLOCK_VECTOR:
                self.drawings += 1
            elif kind == mupdf.FZ_STEXT_BLOCK_IMAGE and len(self.images) < _MOST_IMAGES:
                rect = block.m_internal.bbox
                self._add_image(picture.box((rect.x0, rect.y0, rect.x1, rect.y1)))

    @property
    def image_share(self) -> float:
        """Share of the page that images cover, 0..1, overlaps counted once."""
        if not self.images:
            return 0.0
        if len(self.images) == 1:
            x0, y0, x1, y1 = self.images[0]
            return (x1 - x0) * (y1 - y0) / (self._size[0] * self._size[1])
        return self._joined_share()

    def _add_image(self, box: Box) -> None:
        if box[2] > box[0] and box[3] > box[1]:
            self.images.append(box)

    def _joined_share(self) -> float:
        across, down = (_GRID / side for side in self._size)
        grid = np.zeros((_GRID, _GRID), dtype=np.bool_)
        for x0, y0, x1, y1 in self.images:
            grid[round(y0 * down) : round(y1 * down), round(x0 * across) : round(x1 * across)] = True
        return float(grid.mean())
