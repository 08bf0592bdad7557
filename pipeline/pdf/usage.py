"""What a process uses, read from /proc by its parent: the process itself cannot lie about it."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_MEMORY = re.compile(rb"^(VmHWM|RssAnon):\s+(\d+) kB$", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    cpu_s: float = 0.0
    anonymous: int = 0
    """Resident bytes of its own; the mapped file is not among them."""
    peak: int = 0
    """Most resident bytes at once, of every kind."""


def read_usage(pid: int) -> Usage | None:
    """As of now; None of a process that has ended, reaped or not."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
        times = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:13]
    except (FileNotFoundError, ProcessLookupError):
        return None
    memory = {name: int(kib) * 1024 for name, kib in _MEMORY.findall(status)}
    if not memory:
        return None
    return Usage(cpu_s=sum(map(int, times)) / _TICKS, anonymous=memory[b"RssAnon"], peak=memory[b"VmHWM"])
