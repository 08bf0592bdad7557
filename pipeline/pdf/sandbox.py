"""The system calls that are left to the parser's child once it has started: a seccomp filter, no root needed.

An allowlist: what is named here is allowed, every other call, known today or not, fails with EPERM. So the child
opens no path, makes no socket, starts no process or program, signals and traces nobody, and makes no memory
executable; it computes, and reads and writes the descriptors it holds. EPERM rather than death, because libraries
probe for much that they can do without (a processor count, a time zone): what they cannot do without ends the
child or the page anyway. Only a call under another architecture's numbers kills: no library of ours makes one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import sys
from collections.abc import Mapping
from typing import NamedTuple

from pipeline.errors import EngineUnavailable

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_TSYNC = 1
"""Other threads of the process too, should a library have started one."""
KILL, REFUSE, ALLOW = 0x80000000, 0x00050000 | errno.EPERM, 0x7FFF0000
"""Verdicts: SECCOMP_RET_KILL_PROCESS, _ERRNO and _ALLOW."""

_LOAD, _EQUALS, _HAS_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
"""Instructions of classic BPF: ld abs, jeq, jset, ret."""
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
"""Offsets in the kernel's struct seccomp_data."""

Instruction = tuple[int, int, int, int]
"""struct sock_filter: code, how far to jump if true, if false, the operand."""


class Machine(NamedTuple):
    """Numbers of one architecture."""

    audit_arch: int
    seccomp: int
    allowed: Mapping[str, int]
    """The calls that are left, by name."""


MACHINES = {
    "x86_64": Machine(
        audit_arch=0xC000003E,
        seccomp=317,
        allowed={
            "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10,
            "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17,
            "readv": 19, "writev": 20, "sched_yield": 24, "mremap": 25, "madvise": 28, "nanosleep": 35, "getpid": 39,
            "recvmsg": 47, "exit": 60, "fcntl": 72, "gettimeofday": 96, "getrusage": 98, "sysinfo": 99,
            "sigaltstack": 131, "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204,
            "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
            "exit_group": 231, "ppoll": 271, "getrandom": 318,
        },
    ),
    "aarch64": Machine(
        audit_arch=0xC00000B7,
        seccomp=277,
        allowed={
            "fcntl": 25, "close": 57, "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67,
            "ppoll": 73, "fstat": 80, "exit": 93, "exit_group": 94, "futex": 98, "nanosleep": 101,
            "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "sched_getaffinity": 123,
            "sched_yield": 124, "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134,
            "rt_sigprocmask": 135, "rt_sigreturn": 139, "getrusage": 165, "gettimeofday": 169, "getpid": 172,
            "gettid": 178, "sysinfo": 179, "recvmsg": 212, "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222,
            "mprotect": 226, "madvise": 233, "getrandom": 278,
        },
    ),
}  # fmt: skip


def enter_sandbox() -> None:
    """From now on, and for good, this process makes no other system call than those above.

    To be called when all is imported: an import opens files. Raises `EngineUnavailable` where the machine has no
    such filter, or does not let us install one.
    """
    machine = MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        raise _unavailable(f"no filter for {sys.platform} on {platform.machine()} is known")
    install_filter(machine, build_filter(machine))


def install_filter(machine: Machine, instructions: list[Instruction]) -> None:
    """On every thread of this process; of all filters installed the strictest verdict holds (seccomp(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise _unavailable(f"PR_SET_NO_NEW_PRIVS: {os.strerror(ctypes.get_errno())}")
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in instructions))
    program = struct.pack("@HP", len(instructions), ctypes.addressof(code))
    left = libc.syscall(
        ctypes.c_long(machine.seccomp),
        ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER),
        ctypes.c_ulong(_SECCOMP_FILTER_FLAG_TSYNC),
        ctypes.c_char_p(program),
    )
    if left:  # -1, or the id of a thread that could not be confined
        raise _unavailable(f"seccomp: {os.strerror(ctypes.get_errno()) if left < 0 else f'thread {left} escapes it'}")


def _unavailable(why: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"the PDF parser cannot be shut off from the rest of the machine ({why}): allow seccomp filters where the "
        "container is started, or set limits.sandbox to off to parse PDFs without one"
    )


def build_filter(machine: Machine) -> list[Instruction]:
    """The program that the kernel runs before every system call."""
    calls = dict(machine.allowed)
    guarded = (
        *_guard(calls.pop("mmap"), _without_bits(2, mmap.PROT_EXEC)),
        *_guard(calls.pop("mprotect"), _without_bits(2, mmap.PROT_EXEC)),
        *_guard(calls.pop("fcntl"), _one_of(1, fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_GETFL)),
    )
    allowed = (step for number in calls.values() for step in _guard(number, [(_RETURN, 0, 0, ALLOW)]))
    return [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUALS, 1, 0, machine.audit_arch),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        *guarded,
        *allowed,
        (_RETURN, 0, 0, REFUSE),
    ]


def _guard(number: int, verdict: list[Instruction]) -> list[Instruction]:
    """`verdict`, which always returns, if the call is this one."""
    return [(_EQUALS, 0, len(verdict), number), *verdict]


def _without_bits(argument: int, bits: int) -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _low_half(argument)),
        (_HAS_BITS, 0, 1, bits),
        (_RETURN, 0, 0, REFUSE),
        (_RETURN, 0, 0, ALLOW),
    ]


def _one_of(argument: int, *values: int) -> list[Instruction]:
    """fcntl can also make the kernel send a signal to any process (F_SETOWN), so only what Python needs."""
    compared = [step for value in values for step in ((_EQUALS, 0, 1, value), (_RETURN, 0, 0, ALLOW))]
    return [(_LOAD, 0, 0, _low_half(argument)), *compared, (_RETURN, 0, 0, REFUSE)]


def _low_half(argument: int) -> int:
    """Of a 64-bit argument, both machines being little-endian. The kernel reads no more of an int."""
    return _ARGUMENTS_AT + 8 * argument
