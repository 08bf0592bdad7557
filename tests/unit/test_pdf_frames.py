"""Given what came over a pipe, when it is read as a frame: a frame, a refusal, or the end."""

from __future__ import annotations

import os

import pytest

from pipeline.pdf.frames import Frame, FrameBounds, FrameError, read_frame, write_frame

BOUNDS = FrameBounds(header=1000, blobs=10)


def read_sent(sent: bytes) -> Frame:
    ours, theirs = os.pipe()
    try:
        os.write(theirs, sent)
        os.close(theirs)
        return read_frame(ours, BOUNDS)
    finally:
        os.close(ours)


def test_what_was_written_is_read() -> None:
    ours, theirs = os.pipe()
    write_frame(theirs, Frame({"name": "é\ud800"}, (b"", b"abc")))
    assert read_frame(ours, BOUNDS) == Frame({"name": "é?"}, (b"", b"abc"))
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 12,
        (1 << 20).to_bytes(4, "big") + bytes(8),
        (2).to_bytes(4, "big") + (11).to_bytes(8, "big") + b"{}",
        (2).to_bytes(4, "big") + (1).to_bytes(8, "big") + b"{}x",
        (2).to_bytes(4, "big") + bytes(8) + b"[]",
        (2).to_bytes(4, "big") + bytes(8) + b"{[",
        (900).to_bytes(4, "big") + bytes(8) + b"[" * 900,
        (11).to_bytes(4, "big") + bytes(8) + b'{"sizes":1}',
        (15).to_bytes(4, "big") + bytes(8) + b'{"sizes":["0"]}',
    ],
)
def test_what_is_no_frame_is_refused(sent: bytes) -> None:
    with pytest.raises(FrameError):
        read_sent(sent)


def test_a_frame_cut_short_is_an_end() -> None:
    with pytest.raises(EOFError):
        read_sent((9).to_bytes(4, "big") + bytes(8) + b"{}")
