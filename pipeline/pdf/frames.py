"""Frames: how the parser's child and its parent talk over a socket and a pipe. A JSON header, then blobs; never pickle.

On the wire: header size (4 bytes, big endian), size of all blobs (8 bytes), the header, the blobs. The
header's ``sizes`` splits the blobs. A reader checks both sizes against its bounds before it reads on.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import struct
import time
from typing import Any

_PREFIX = struct.Struct(">IQ")


class FrameError(Exception):
    """The other side does not keep to the protocol."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    header: dict[str, Any]
    blobs: tuple[bytes, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FrameBounds:
    """The most bytes that a reader accepts."""

    header: int
    blobs: int


def write_frame(fd: int, frame: Frame) -> None:
    """Write all of `frame`. Raises `BrokenPipeError` where nobody reads any more."""
    sizes = [len(blob) for blob in frame.blobs]
    header = json.dumps({**frame.header, "sizes": sizes}, ensure_ascii=False).encode("utf-8", "replace")
    for part in (_PREFIX.pack(len(header), sum(sizes)) + header, *frame.blobs):
        _write_all(fd, memoryview(part))


def _write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]


def read_frame(fd: int, bounds: FrameBounds, deadline: float | None = None) -> Frame:
    """The next frame.

    Raises `EOFError` where the other side has closed, `TimeoutError` at `deadline` (`time.monotonic`; none:
    wait for ever), `FrameError` for anything too large or not a frame.
    """
    header_size, blobs_size = _PREFIX.unpack(_read_exactly(fd, _PREFIX.size, deadline))
    if header_size > bounds.header or blobs_size > bounds.blobs:
        raise FrameError(f"a frame of {header_size} + {blobs_size} bytes: over the bound")
    header = _parse_header(_read_exactly(fd, header_size, deadline))
    return Frame(header, _split(memoryview(_read_exactly(fd, blobs_size, deadline)), header.pop("sizes", [])))


def _parse_header(encoded: bytearray) -> dict[str, Any]:
    try:
        header = json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise FrameError("a frame whose header is not JSON") from error
    if not isinstance(header, dict):
        raise FrameError("a frame whose header is not an object")
    return header


def _split(blobs: memoryview, sizes: Any) -> tuple[bytes, ...]:
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise FrameError("a frame whose sizes are no list of sizes")
    if sum(sizes) != len(blobs):
        raise FrameError("a frame whose sizes do not add up")
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(bytes(blobs[end - size : end]) for size, end in zip(sizes, ends, strict=True))


def _read_exactly(fd: int, size: int, deadline: float | None) -> bytearray:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        wait_readable(fd, deadline)
        count = os.readv(fd, [view])
        if not count:
            raise EOFError("the other side has closed the pipe")
        view = view[count:]
    return buffer


def wait_readable(fd: int, deadline: float | None) -> None:
    """Return when `fd` has bytes or has ended; raise `TimeoutError` if neither happens before `deadline`.

    What is there already counts even when the deadline has passed.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(left):
        raise TimeoutError("nothing to read before the deadline")
