# mypy: untyped-calls-exclude=pymupdf
"""The parser's child process: ``python -m pipeline.pdf.child``. Reads requests from stdin, answers on stdout.

It is confined before it sees a file: address space, CPU time, file sizes and descriptors are limited, no core is
written, it is killed with its parent, and a seccomp filter leaves it no way to open a path or a socket or to start
a process. The file to read comes as an open descriptor. Importing it must not load pydantic, SQLAlchemy or Ray:
start-up is 0.2 s, most of it pymupdf and numpy.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import socket
import sys
from typing import Any

import pymupdf

from pipeline.errors import EngineUnavailable, PageBroken, PagegateError, ParserMemory
from pipeline.pdf.document import MEMORY_ERRORS, PARSER_ERRORS, OpenPdf, map_file
from pipeline.pdf.frames import Frame, FrameBounds, read_frame, write_frame
from pipeline.pdf.handover import receive_file
from pipeline.pdf.page import PageOptions, read_page
from pipeline.pdf.sandbox import enter_sandbox
from pipeline.pdf.warmup import warm_up

_REQUEST_BOUNDS = FrameBounds(header=10_000, blobs=0)
_PR_SET_PDEATHSIG = 1
_FILE_BYTES = 1 << 20
"""For the parent's file behind stderr; nothing else is open for writing."""
_DESCRIPTORS = 64


class Session:
    """Answers requests; keeps the last file open, because windows of one file come in a row."""

    def __init__(self) -> None:
        self._pdf: OpenPdf | None = None
        self._source: dict[str, int] = {}

    def answer(self, request: Frame, fd: int) -> Frame:
        """The answer to one request about the file open at `fd`; a failure that has a name is an answer, too."""
        try:
            return self._answer(request.header, fd)
        except PagegateError as error:
            return Frame({"error": error.code, "message": error.message})
        except MEMORY_ERRORS:
            return Frame({"error": ParserMemory.code, "message": "the parser reached limits.memory_bytes"})
        except PARSER_ERRORS as error:
            return Frame({"error": PageBroken.code, "message": f"the parser refuses it: {error}"[:500]})

    def _answer(self, header: dict[str, Any], fd: int) -> Frame:
        if header["do"] == "inspect":
            return Frame(self._open(fd, header["source"], fresh=True).describe(header["max_pages"]))
        reading = read_page(self._open(fd, header["source"]), header["index"], PageOptions(**header["options"]))
        width, height, dpi = reading.picture.width, reading.picture.height, reading.picture.dpi
        facts = {"suffix": reading.suffix, "width": width, "height": height, "dpi": dpi}
        return Frame(facts, (reading.image, reading.evidence))

    def _open(self, fd: int, source: dict[str, int], *, fresh: bool = False) -> OpenPdf:
        """`source` tells files apart; its size is what is mapped."""
        if self._pdf is None or source != self._source or fresh:
            self._close()
            self._pdf, self._source = OpenPdf(map_file(fd, source["size"])), source
        return self._pdf

    def _close(self) -> None:
        if self._pdf is not None:
            self._pdf.close()
            self._pdf = None


def main() -> None:
    """Serve until stdin ends."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--parent", type=int, required=True)
    arguments.add_argument("--memory-bytes", type=int, required=True)
    arguments.add_argument("--cpu-seconds", type=int, required=True)
    arguments.add_argument("--sandbox", choices=("required", "off"), required=True)
    options = arguments.parse_args()
    answers, requests = _guard_stdout(), socket.socket(fileno=sys.stdin.fileno())
    die_with(options.parent)
    try:
        shut_off(options.memory_bytes, options.cpu_seconds, sandbox=options.sandbox == "required")
    except EngineUnavailable as error:
        write_frame(answers, Frame({"error": error.code, "message": error.message}))
    else:
        _serve(requests, answers)


def shut_off(memory_bytes: int, cpu_seconds: int, *, sandbox: bool) -> None:
    """All that this process gives up before it sees a file. Raises `EngineUnavailable`."""
    pymupdf.TOOLS.mupdf_display_errors(False)
    pymupdf.TOOLS.mupdf_display_warnings(False)
    confine(memory_bytes, cpu_seconds)
    warm_up()
    if sandbox:
        enter_sandbox()


def _serve(requests: socket.socket, answers: int) -> None:
    session = Session()
    write_frame(answers, Frame({"ready": True}))
    while True:
        try:
            fd = receive_file(requests)
            request = read_frame(requests.fileno(), _REQUEST_BOUNDS)
        except EOFError:
            return
        answer = session.answer(request, fd)
        os.close(fd)
        write_frame(answers, answer)


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


def confine(memory_bytes: int, cpu_seconds: int) -> None:
    """Limits that this process cannot raise again. `cpu_seconds` holds even while the parent is stopped."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
        (resource.RLIMIT_NPROC, 0),  # root is exempt from it, so it only stands in where the filter is off
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main()
