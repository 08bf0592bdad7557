"""How much of a page is inked, and how much of that no text box covers. Measured on a sample of pixels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pipeline.pdf.geometry import Box

Bytes = npt.NDArray[np.uint8]


_CONTRAST = 48
"""A pixel is ink where a channel is further from the background: paper noise and JPEG ringing stay below."""
_SAMPLES = 250_000
"""About as many pixels are looked at; a share of 0.0002 is 50 of them."""
_PRIMES = (1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ink:
    share: float
    """Of the page's pixels, 0..1."""
    uncovered: float
    """Of the ink, 0..1; 0 where there is none."""


def measure_ink(pixels: Bytes, text_boxes: Iterable[Box]) -> Ink:
    """`pixels`: ``(height, width, 3)``; boxes in pixels. The same input gives the same numbers."""
    height, width = pixels.shape[:2]
    step = _step(height * width, width)
    sample = pixels.reshape(-1, 3)[::step]
    inked = np.flatnonzero(_differs(sample))
    if not inked.size:
        return Ink(share=0.0, uncovered=0.0)
    rows, columns = np.divmod(inked * step, width)
    covered = _cover(height, width, text_boxes)[rows, columns]
    return Ink(share=inked.size / len(sample), uncovered=1.0 - float(np.count_nonzero(covered)) / inked.size)


def _step(pixels: int, width: int) -> int:
    """A stride through the flat picture that does not divide its width: no column or row is left out."""
    wanted = max(1, pixels // _SAMPLES)
    fitting = [prime for prime in _PRIMES if prime <= wanted and (prime == 1 or width % prime)]
    return fitting[-1]


def _differs(sample: Bytes) -> npt.NDArray[np.bool_]:
    inked = np.zeros(len(sample), dtype=np.bool_)
    for channel in range(3):
        values = np.ascontiguousarray(sample[:, channel])
        paper = int(np.bincount(values[::4], minlength=256).argmax())
        lowest, highest = max(0, paper - _CONTRAST), min(255, paper + _CONTRAST)
        # Below `lowest` the difference wraps, so one comparison tells both ends.
        inked |= (values - np.uint8(lowest)) > np.uint8(highest - lowest)
    return inked


def _cover(height: int, width: int, boxes: Iterable[Box]) -> npt.NDArray[np.bool_]:
    mask = np.zeros((height, width), dtype=np.bool_)
    for x0, y0, x1, y1 in boxes:
        mask[max(0, int(y0)) : int(y1) + 1, max(0, int(x0)) : int(x1) + 1] = True
    return mask
