"""One child process that parses PDFs: started with next to nothing, spoken to in frames, killed at will."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import EngineUnavailable, ParserCrashed, ParserTimeout
from pipeline.pdf.frames import Frame, FrameBounds, FrameError, read_frame, wait_readable, write_frame
from pipeline.pdf.handover import send_file
from pipeline.pdf.usage import Usage, read_usage

if TYPE_CHECKING:  # the child imports this package too, and must not load pydantic
    from pipeline.settings import PdfLimits

START_SECONDS = 60.0
"""A start takes a third of a second; a machine that needs longer than this is not well."""
TRANSFER_SECONDS = 10.0
"""What a frame may take from its first byte to its last."""
_PIPE_BYTES = 1 << 20
"""A pipe that takes a whole answer, so that the child goes idle while its parent is busy elsewhere."""
_CPU_PAGES = 30
"""A child may use the CPU for as many pages that take all the time they may: far more than it uses for its share
of ordinary ones, and it is replaced before. The limit ends an endless page whose parent is stopped."""
_CPU_START_S = 10
_SOURCE_ROOT = Path(__file__).resolve().parents[2]


class ParserProcess:
    """A running `pipeline.pdf.child`. One request is answered at a time.

    Requests go over a socket, because open files go with them; answers come over a pipe.

    The child dies with the *thread* that started it (PR_SET_PDEATHSIG), at the latest when stdin closes.
    Raises `EngineUnavailable` where it cannot be started at all.
    """

    def __init__(self, limits: PdfLimits) -> None:
        self._cpu_seconds = _cpu_seconds(limits)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        self._requests, theirs = socket.socketpair()
        self._requests.shutdown(socket.SHUT_RD)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                _command(limits),
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=_minimal_environment(),
                cwd="/",
                start_new_session=True,
            )
        self.pages = 0
        """Pages asked for so far."""
        self.requests = 0
        """Of every kind, so far."""
        self.usage = Usage()
        """As of the last answer, or of the moment before it was killed."""
        self.awaited = False
        """Whether an answer is outstanding."""
        with contextlib.suppress(OSError):  # over this user's allowance of pipe pages: slower, not wrong
            fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._await_start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, frame: Frame, source: int) -> None:
        """Hand over a request and the open file it is about. A dead child shows when its answer is awaited."""
        self.awaited = True
        self.requests += 1
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send_file(self._requests, source)
            write_frame(self._requests.fileno(), frame)

    def receive(self, bounds: FrameBounds, deadline: float) -> Frame:
        """The answer to the last request.

        Raises `ParserTimeout` when it has not begun by `deadline`, `ParserCrashed` when the child died or
        answered nonsense. Either way the child is dead then.
        """
        if self._stderr.closed:
            raise ParserCrashed("the parser was stopped before it had answered")
        try:
            wait_readable(self._stdout, deadline)
            frame = read_frame(self._stdout, bounds, time.monotonic() + TRANSFER_SECONDS)
        except TimeoutError as error:
            self.kill()
            raise ParserTimeout("the parser did not answer in time and was killed") from error
        except EOFError as error:
            raise ParserCrashed(f"the parser died: {self._last_words()}") from error
        except FrameError as error:
            self.kill()
            raise ParserCrashed(f"the parser answered nonsense and was killed: {error}") from error
        self.awaited = False
        self._take_usage()
        return frame

    def kill(self) -> None:
        """End the child now. Idempotent."""
        self._take_usage()
        self._process.kill()
        self._process.wait()
        for stream in (self._requests, self._process.stdout, self._stderr):
            if stream is not None:
                stream.close()

    def has_cpu_for(self, seconds: float) -> bool:
        """Whether it can use so many seconds more before the system ends it."""
        return self.usage.cpu_s + seconds < self._cpu_seconds

    @property
    def _stdout(self) -> int:
        assert self._process.stdout is not None  # noqa: S101
        return self._process.stdout.fileno()

    def _await_start(self) -> None:
        """Wait for the child's first frame, so that no page is charged for the start."""
        try:
            frame = self.receive(FrameBounds(header=1000, blobs=0), time.monotonic() + START_SECONDS)
        except (ParserTimeout, ParserCrashed) as error:
            self.kill()
            raise EngineUnavailable(
                f"the PDF parser does not start: {error.message}; "
                "check that pymupdf is installed and that limits.memory_bytes is enough"
            ) from error
        if "error" in frame.header:
            self.kill()
            raise EngineUnavailable(frame.header["message"])

    def _take_usage(self) -> None:
        if self._process.returncode is None:  # afterwards its id may be another process's
            self.usage = read_usage(self.pid) or self.usage

    def _last_words(self) -> str:
        """How it ended, and the last line it wrote to stderr; kills it if it only closed its pipe."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        line = self._last_line()
        self.kill()
        code = self._process.returncode
        how = f"signal {_signal_name(-code)}" if code < 0 else f"exit status {code}"
        return f"{how} ({line})" if line else how

    def _last_line(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - 500))
        return self._stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _command(limits: PdfLimits) -> list[str]:
    """`-P` and `-s`: nothing is imported from the working directory or the user's own packages."""
    here = [sys.executable, "-P", "-s", "-m", "pipeline.pdf.child"]
    return [
        *here,
        f"--parent={os.getpid()}",
        f"--memory-bytes={limits.memory_bytes}",
        f"--cpu-seconds={_cpu_seconds(limits)}",
        f"--sandbox={limits.sandbox}",
    ]


def _cpu_seconds(limits: PdfLimits) -> int:
    return math.ceil(limits.seconds_per_page * _CPU_PAGES) + _CPU_START_S


def _minimal_environment() -> dict[str, str]:
    """No credentials, no proxies: what an import needs and nothing else."""
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(_SOURCE_ROOT),
        "OPENBLAS_NUM_THREADS": "1",
    }
