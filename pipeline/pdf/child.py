# mypy: untyped-calls-exclude=pymupdf
"""The parser's child process: ``python -m pipeline.pdf.child``. Reads requests from stdin, answers on stdout.

It is confined before it sees a file: address space, file sizes and descriptors are limited, no core is
written, and it is killed with its parent. It never writes a file and never opens a socket. Importing it must
not load pydantic, SQLAlchemy or Ray: start-up is 0.15 s, most of it pymupdf and numpy.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import pymupdf

from pipeline.errors import PageBroken, PagegateError, ParserMemory
from pipeline.pdf.document import MEMORY_ERRORS, PARSER_ERRORS, OpenPdf
from pipeline.pdf.frames import Frame, FrameBounds, read_frame, write_frame
from pipeline.pdf.page import PageOptions, read_page

_REQUEST_BOUNDS = FrameBounds(header=100_000, blobs=100_000)
_PR_SET_PDEATHSIG = 1
_FILE_BYTES = 1 << 20
"""For the parent's file behind stderr; nothing else is open for writing."""
_DESCRIPTORS = 64
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class Session:
    """Answers requests; keeps the last file open, because windows of one file come in a row."""

    def __init__(self) -> None:
        self._pdf: OpenPdf | None = None
        self._key: tuple[Any, ...] = ()

    def answer(self, request: Frame) -> Frame:
        """The answer to one request; every failure that has a name is an answer, too."""
        try:
            return self._answer(request)
        except PagegateError as error:
            return Frame({"error": error.code, "message": error.message})
        except MEMORY_ERRORS:
            return Frame({"error": ParserMemory.code, "message": "the parser reached limits.memory_bytes"})
        except PARSER_ERRORS as error:
            return Frame({"error": PageBroken.code, "message": f"the parser refuses it: {error}"[:500]})

    def _answer(self, request: Frame) -> Frame:
        header = request.header
        if header["do"] == "inspect":
            return Frame(self._open(request.blobs[0], fresh=True).describe(header["max_pages"]))
        reading = read_page(self._open(request.blobs[0]), header["index"], PageOptions(**header["options"]))
        width, height, dpi = reading.picture.width, reading.picture.height, reading.picture.dpi
        facts = {"suffix": reading.suffix, "width": width, "height": height, "dpi": dpi}
        return Frame(facts, (reading.image, reading.evidence))

    def _open(self, path: bytes, *, fresh: bool = False) -> OpenPdf:
        key = _identity(path)
        if self._pdf is None or key != self._key or fresh:
            self._close()
            self._pdf, self._key = OpenPdf(path), key
        return self._pdf

    def _close(self) -> None:
        if self._pdf is not None:
            self._pdf.close()
            self._pdf = None
            pymupdf.TOOLS.store_shrink(100)


def main() -> None:
    """Serve until stdin ends."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--parent", type=int, required=True)
    arguments.add_argument("--memory-bytes", type=int, required=True)
    options = arguments.parse_args()
    answers = _guard_stdout()
    die_with(options.parent)
    confine(options.memory_bytes)
    pymupdf.TOOLS.mupdf_display_errors(False)
    pymupdf.TOOLS.mupdf_display_warnings(False)
    _serve(answers)


def _serve(answers: int) -> None:
    session = Session()
    _write(answers, Frame({"ready": True}))
    while True:
        try:
            request = read_frame(sys.stdin.fileno(), _REQUEST_BOUNDS)
        except EOFError:
            return
        _write(answers, session.answer(request))


def _write(answers: int, frame: Frame) -> None:
    write_frame(answers, Frame({**frame.header, "rss": _resident_bytes()}, frame.blobs))


def _guard_stdout() -> int:
    """Keep the pipe for frames alone: whatever a library prints to descriptor 1 goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def die_with(parent: int) -> None:
    """Be killed when the parent goes, even in an endless page. (It may have gone before we asked.)"""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def confine(memory_bytes: int) -> None:
    """Limits that this process cannot raise again."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        resource.setrlimit(kind, (most, most))


def _identity(path: bytes) -> tuple[Any, ...]:
    """Changes when another file stands at `path`; a missing one is found out on opening."""
    try:
        status = Path(os.fsdecode(path)).stat()
    except FileNotFoundError:
        return (path,)
    return (path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


if __name__ == "__main__":
    main()
