"""What the parser's child can still do once it is shut off: nothing but compute and answer."""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import EngineUnavailable, PageError
from pipeline.pdf import PdfReader, RenderedPage, process
from pipeline.pdf.sandbox import ALLOW, KILL, MACHINES, REFUSE, Machine, build_filter
from pipeline.settings import PdfLimits, RenderOptions, load_settings
from tests.pdfs import write_pdf

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = RenderOptions(dpi=72)
X86_64, AARCH64 = MACHINES["x86_64"], MACHINES["aarch64"]

ATTEMPTS = {
    "open a socket": "socket.socket()",
    "open a pair of sockets": "socket.socketpair()",
    "become another program": "os.execv('/bin/true', ['true'])",
    "start a program": "subprocess.run(['/bin/true'])",
    "fork": "os.fork() or os._exit(0)",
    "start a thread": "_thread.start_new_thread(print, ())",
    "read a file of the machine": "open('/etc/passwd').read()",
    "read another file of the store": "open(OTHER, 'rb').read()",
    "map another file of the store": "os.open(OTHER, os.O_RDONLY)",
    "look at a file": "os.stat(OTHER)",
    "list a folder": "os.listdir('/')",
    "write a file": "open(FOLDER + '/new', 'w')",
    "make a folder": "os.mkdir(FOLDER + '/folder')",
    "delete a file": "os.unlink(OTHER)",
    "kill the parent": "os.kill(os.getppid(), signal.SIGKILL)",
    "have the kernel signal the parent": "fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "raise its own limits": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "make memory executable": "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)",
    "trace the parent": "call('ptrace', 16, os.getppid(), 0, 0)",
    "read the parent's memory": "call('process_vm_readv', os.getppid(), 0, 0, 0, 0, 0)",
    "mount": "call('mount', None, None, None, 0, None)",
    "lift the filter's flag": "call('prctl', 38, 0, 0, 0, 0)",
    "make a file in memory": "os.memfd_create('x')",
    "leave its namespaces": "call('unshare', 0)",
    "take 3 GB": "bytearray(3_000_000_000)",
}
"""Each a line of Python that raises if it is refused."""
REFUSED = {"start a thread": "RuntimeError", "raise its own limits": "ValueError", "take 3 GB": "MemoryError"}
"""What is raised where it is not EPERM."""
PRELUDE = """
import _thread, ctypes, fcntl, json, mmap, os, resource, signal, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
"""
PROBE = (
    PRELUDE
    + """
from pipeline.pdf.child import shut_off
FOLDER, OTHER, attempts, sandbox = json.loads(sys.argv[1])
def outcome(attempt):
    try:
        exec(attempt)
    except OSError as error:
        return error.errno
    except Exception as error:
        return type(error).__name__
if sandbox is not None:
    shut_off(2 * 1024**3, 60, sandbox=sandbox)
os.write(1, json.dumps({name: outcome(attempt) for name, attempt in attempts.items()}).encode())
"""
)
SABOTAGED = (
    PRELUDE
    + """
import pymupdf
from pipeline.pdf import child
def sabotage(get_displaylist):
    def attempt(page, *options):
        if page.number == 1:
            {attempt}
        return get_displaylist(page, *options)
    return attempt
pymupdf.Page.get_displaylist = sabotage(pymupdf.Page.get_displaylist)
child.main()
"""
)
"""A child in which the parser itself makes the attempt, on page 1."""


def probe(folder: Path, attempts: dict[str, str], sandbox: bool | None) -> dict[str, int | str | None]:
    """What comes of the attempts in a process that has shut itself off as the child does (None: not at all)."""
    other = folder / "other"
    other.write_bytes(b"of another tenant")
    arguments = json.dumps([str(folder), str(other), attempts, sandbox])
    ended = subprocess.run([sys.executable, "-c", PROBE, arguments], cwd=ROOT, capture_output=True, check=True)
    outcomes: dict[str, int | str | None] = json.loads(ended.stdout)
    return outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int | str | None]:
    return probe(tmp_path_factory.mktemp("store"), ATTEMPTS, sandbox=True)


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_the_child_can_not(outcomes: dict[str, int | str | None], attempt: str) -> None:
    assert outcomes[attempt] == REFUSED.get(attempt, errno.EPERM)


def test_the_attempts_succeed_where_nothing_is_shut_off(tmp_path: Path) -> None:
    need_root = {"mount", "trace the parent", "read the parent's memory", "lift the filter's flag"}
    ending = {"become another program", "kill the parent", "take 3 GB"}
    harmless = {name: attempt for name, attempt in ATTEMPTS.items() if name not in need_root | ending}
    assert set(probe(tmp_path, harmless, sandbox=None).values()) == {None}


def test_without_the_filter_the_limits_still_hold(tmp_path: Path) -> None:
    some = ("open a socket", "take 3 GB")
    outcomes = probe(tmp_path, {name: ATTEMPTS[name] for name in some}, sandbox=False)
    assert outcomes == {"open a socket": None, "take 3 GB": "MemoryError"}


def run_as_child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """From now on a child runs `code` in place of `pipeline.pdf.child`."""
    command = process._command

    def command_with_code(limits: PdfLimits) -> list[str]:
        return [sys.executable, "-P", "-s", "-c", code, *command(limits)[5:]]

    monkeypatch.setattr(process, "_command", command_with_code)


def outcomes_of(path: Path, limits: PdfLimits | None = None) -> list[RenderedPage | PageError]:
    with PdfReader(limits or PdfLimits()) as reader:
        return list(reader.pages(path, [0, 1, 2], OPTIONS))


@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        ("socket.socket()", "parser_crashed"),
        ("os.execv('/bin/true', ['true'])", "parser_crashed"),
        ("subprocess.run(['/bin/true'])", "parser_crashed"),
        ("open('/etc/passwd').read()", "parser_crashed"),
        ("open(OTHER).read()", "parser_crashed"),
        ("open(OTHER, 'w')", "parser_crashed"),
        ("os.kill(os.getppid(), signal.SIGKILL)", "parser_crashed"),
        ("call('ptrace', 16, os.getppid(), 0, 0)", "parser_crashed"),
        ("bytearray(3_000_000_000)", "parser_memory"),
        ("pymupdf.mupdf.fz_open_file(OTHER)", "parser_memory"),  # no memory and no file are one error to MuPDF
        ("pymupdf.open(OTHER)", "page_broken"),
    ],
)
def test_a_page_that_makes_the_parser_try_is_typed_and_the_next_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: str, code: str
) -> None:
    path, other = write_pdf(tmp_path / "a.pdf", ["0", "1", "2"]), write_pdf(tmp_path / "other.pdf", ["other"])
    content = other.read_bytes()
    run_as_child(monkeypatch, SABOTAGED.replace("{attempt}", attempt.replace("OTHER", repr(str(other)))))
    first, refused, last = outcomes_of(path)
    assert isinstance(first, RenderedPage)
    assert isinstance(refused, PageError), refused
    assert isinstance(last, RenderedPage)
    assert refused.code == code
    if code == "parser_crashed":
        assert "PermissionError: [Errno 1]" in refused.message
    assert other.read_bytes() == content


def test_the_same_attempt_succeeds_with_the_sandbox_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_as_child(monkeypatch, SABOTAGED.replace("{attempt}", "socket.socket()"))
    path = write_pdf(tmp_path / "a.pdf", ["0", "1", "2"])
    pages = outcomes_of(path, PdfLimits(sandbox="off"))
    assert all(isinstance(page, RenderedPage) for page in pages)


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("import platform; platform.machine = lambda: 's390x'", "on s390x"),
        (
            "from pipeline.pdf.sandbox import *; from pipeline.pdf import sandbox; import platform\n"
            "machine = MACHINES[platform.machine()]\n"
            "sandbox.install_filter(machine, ["
            "(0x20, 0, 0, 0), (0x15, 0, 1, machine.seccomp), (6, 0, 0, REFUSE), (6, 0, 0, ALLOW)])",
            "seccomp: Operation not permitted",
        ),
    ],
    ids=["another machine", "a container that allows no filter"],
)
def test_where_there_is_no_filter_the_operator_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, told: str
) -> None:
    path = write_pdf(tmp_path / "a.pdf", ["0", "1", "2"])
    run_as_child(monkeypatch, f"{trouble}\nfrom pipeline.pdf import child\nchild.main()")
    with pytest.raises(EngineUnavailable, match=f"{told}.*limits.sandbox to off"):
        outcomes_of(path)
    assert len(outcomes_of(path, PdfLimits(sandbox="off"))) == 3


@pytest.mark.parametrize(("written", "meant"), [("off", "off"), ("required", "required"), ('"off"', "off")])
def test_the_option_may_be_written_as_yaml_likes(tmp_path: Path, written: str, meant: str) -> None:
    (tmp_path / "pagegate.yaml").write_text(f"limits: {{sandbox: {written}}}\n")
    assert load_settings(tmp_path / "pagegate.yaml").limits.sandbox == meant
    assert PdfLimits().sandbox == "required"


def test_a_child_ends_by_itself_when_its_cpu_time_is_used_up() -> None:
    code = "from pipeline.pdf.child import shut_off\nshut_off(2 * 1024**3, 2, sandbox=True)\nwhile True: pass"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode in (-signal.SIGKILL, -signal.SIGXCPU)


def test_the_child_holds_its_channels_and_the_file_and_nothing_else(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", ["0", "1", "2"])
    with PdfReader(PdfLimits()) as reader:
        list(reader.pages(path, [0, 1, 2], OPTIONS))
        proc = Path(f"/proc/{reader.pid}")
        held = {os.fspath(fd.readlink()): fd.lstat().st_mode & 0o700 for fd in (proc / "fd").iterdir()}
        status = (proc / "status").read_text()
    assert held.pop(str(path)) == 0o500  # open for reading
    assert sorted(name.partition(":")[0] for name in held if not name.endswith(" (deleted)")) == ["pipe", "socket"]
    assert len(held) == 3  # and the file behind stderr
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
    assert re.search(r"^Threads:\s+1$", status, re.MULTILINE)


def verdict(machine: Machine, number: int, arguments: tuple[int, ...] = (), arch: int | None = None) -> int:
    """What the kernel would say, computed by running the filter as it does (classic BPF over seccomp_data)."""
    words = [number, machine.audit_arch if arch is None else arch, 0, 0]
    for argument in (*arguments, *[0] * (6 - len(arguments))):
        words += [argument & 0xFFFFFFFF, argument >> 32]
    program, at, value = build_filter(machine), 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            value = words[operand // 4]
        else:
            at += if_true if (value == operand if code == 0x15 else value & operand) else if_false


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    yield MACHINES[request.param]


def test_the_filter_allows_what_is_named_and_refuses_all_else(machine: Machine) -> None:
    allowed = {number for number in range(1024) if verdict(machine, number, (0, fcntl.F_GETFD)) == ALLOW}
    assert allowed == set(machine.allowed.values())
    assert {verdict(machine, number) for number in range(1024) if number not in allowed} == {REFUSE}


def test_calls_under_other_numbers_are_no_way_around_it(machine: Machine) -> None:
    i386, x32 = 0x40000003, 0x40000000
    assert verdict(machine, machine.allowed["read"], arch=i386) == KILL
    assert verdict(machine, machine.allowed["read"] | x32) == REFUSE


def test_memory_is_never_made_executable(machine: Machine) -> None:
    for name in ("mmap", "mprotect"):
        assert verdict(machine, machine.allowed[name], (0, 4096, mmap.PROT_READ | mmap.PROT_WRITE)) == ALLOW
        assert verdict(machine, machine.allowed[name], (0, 4096, mmap.PROT_READ | mmap.PROT_EXEC)) == REFUSE


def test_of_fcntl_only_what_concerns_the_descriptor_itself(machine: Machine) -> None:
    commands = {command for command in range(2048) if verdict(machine, machine.allowed["fcntl"], (0, command)) == ALLOW}
    assert commands == {fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_GETFL}


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        (X86_64, Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")),
        (AARCH64, Path("/usr/include/asm-generic/unistd.h")),
    ],
    ids=["x86_64", "aarch64"],
)
def test_the_numbers_are_the_kernels(machine: Machine, header: Path) -> None:
    if not header.is_file():
        pytest.skip(f"{header} is absent")
    numbers = dict(re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)\b", header.read_text(), re.MULTILINE))
    named = {**machine.allowed, "seccomp": machine.seccomp}
    assert named == {name: int(numbers[name]) for name in named}
