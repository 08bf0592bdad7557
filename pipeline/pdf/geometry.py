"""From points of a page to pixels of its stored image."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """The stored image's size, and where a point of the page (as a viewer shows it) lies in it."""

    width: int
    height: int
    left: float
    """Of the page's rectangle, in points."""
    top: float
    scale: float
    """Pixels a point."""

    @property
    def dpi(self) -> float:
        return round(self.scale * 72, 2)

    def box(self, points: Box) -> Box:
        """In pixels, one decimal, within the image. (`max` with NaN second gives 0.)"""
        x0, y0, x1, y1 = points
        width, height, left, top, scale = self.width, self.height, self.left, self.top, self.scale
        return (
            round(min(width, max(0.0, (x0 - left) * scale)), 1),
            round(min(height, max(0.0, (y0 - top) * scale)), 1),
            round(min(width, max(0.0, (x1 - left) * scale)), 1),
            round(min(height, max(0.0, (y1 - top) * scale)), 1),
        )


def union(boxes: Iterable[Box]) -> Box:
    """The smallest box around all of `boxes`, of which there is at least one."""
    left, top, right, bottom = zip(*boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)
