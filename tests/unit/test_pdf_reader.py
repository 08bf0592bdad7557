# mypy: untyped-calls-exclude=pymupdf
"""The reader's promises about its child: it may die, hang or burst, and every page still ends typed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pymupdf
import pytest

from pipeline import errors
from pipeline.pdf import PdfReader, RenderedPage
from pipeline.pdf.frames import Frame, FrameBounds
from pipeline.pdf.process import ParserProcess
from pipeline.pdf.usage import Usage
from pipeline.settings import PdfLimits, RenderOptions

OPTIONS = RenderOptions(dpi=72)
ROOT = Path(__file__).resolve().parents[2]
ENDLESS = b"0 0 m 200 100 l 0 100 l 200 0 l S\n" * 3_000_000


@pytest.fixture
def reader() -> Iterator[PdfReader]:
    with PdfReader(PdfLimits()) as reader:
        yield reader


def write_pdf(path: Path, pages: int = 4, contents: dict[int, bytes] | None = None) -> Path:
    """A PDF whose page i says "page i", or has the content given for it."""
    document = pymupdf.open()
    for index in range(pages):
        page = document.new_page(width=200, height=100)
        page.insert_text((20, 50), f"page {index}")
        if contents and index in contents:
            document.update_stream(page.get_contents()[0], contents[index])
    document.save(path)
    return path


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def codes(results: list[RenderedPage | errors.PageError]) -> list[str | int]:
    return [r.page_index if isinstance(r, RenderedPage) else r.code for r in results]


def kill_at(monkeypatch: pytest.MonkeyPatch, *indices: int, times: int) -> list[int]:
    """From now on the child is killed when it is asked for one of these pages, so many times."""
    killed: list[int] = []
    send = ParserProcess.send

    def send_and_kill(self: ParserProcess, frame: Frame, source: int) -> None:
        if frame.header.get("index") not in indices or len(killed) >= times:
            return send(self, frame, source)
        killed.append(self.pid)
        os.kill(self.pid, signal.SIGSTOP)  # or it may have answered before it is killed
        send(self, frame, source)
        return os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(ParserProcess, "send", send_and_kill)
    return killed


def test_pages_come_in_the_order_asked_for(reader: PdfReader, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    assert codes(list(reader.pages(path, [2, 0, 3, 3], OPTIONS))) == [2, 0, 3, 3]


def test_a_page_that_is_not_there_is_that_pages_error(reader: PdfReader, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", pages=2)
    assert codes(list(reader.pages(path, [0, 7, -1, 1], OPTIONS))) == [0, "page_broken", "page_broken", 1]


def test_one_crash_is_forgiven(reader: PdfReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    killed = kill_at(monkeypatch, 2, times=1)
    assert codes(list(reader.pages(path, range(4), OPTIONS))) == [0, 1, 2, 3]
    assert killed


def test_a_page_that_crashes_alone_is_parser_crashed_and_its_neighbours_are_not(
    reader: PdfReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    killed = kill_at(monkeypatch, 2, times=99)
    results = list(reader.pages(path, range(4), OPTIONS))
    assert codes(results) == [0, 1, "parser_crashed", 3]
    assert len(set(killed)) == 2
    assert "SIGKILL" in str(results[2])


@pytest.mark.parametrize("bad", [(0,), (3,), (1, 2), (0, 3), (0, 1, 2, 3)])
def test_wherever_the_bad_pages_stand_no_other_page_is_charged(
    reader: PdfReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: tuple[int, ...]
) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    kill_at(monkeypatch, *bad, times=99)
    expected = ["parser_crashed" if index in bad else index for index in range(4)]
    assert codes(list(reader.pages(path, range(4), OPTIONS))) == expected


def test_a_page_that_was_alone_in_its_child_is_not_tried_again(
    reader: PdfReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    killed = kill_at(monkeypatch, 0, times=99)
    assert codes(list(reader.pages(path, [0, 1, 0], OPTIONS))) == ["parser_crashed", 1, "parser_crashed"]
    assert len(killed) == 3  # at first it was alone; after page 1 it was not


def test_one_page_is_asked_for_at_a_time(reader: PdfReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So whatever happens in the child happens at one page."""
    path = write_pdf(tmp_path / "a.pdf")
    send, outstanding = ParserProcess.send, []

    def watch(self: ParserProcess, frame: Frame, source: int) -> None:
        outstanding.append(self.awaited)
        send(self, frame, source)

    monkeypatch.setattr(ParserProcess, "send", watch)
    assert codes(list(reader.pages(path, range(4), OPTIONS))) == [0, 1, 2, 3]
    assert outstanding == [False] * 4


@pytest.mark.parametrize(
    ("header", "blobs"),
    [
        ({}, 2),
        ({"suffix": ".jpg", "width": "9", "height": 9, "dpi": 72.0}, 2),
        ({"suffix": ".jpg", "width": 9, "height": 9, "dpi": 72.0}, 1),
        ({"error": "no such code", "message": ""}, 0),
        ({"error": ["page_broken"], "message": ""}, 0),
        ({"error": "page_broken", "message": None}, 0),
    ],
)
def test_an_answer_that_makes_no_sense_is_a_crash(
    reader: PdfReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: dict[str, object], blobs: int
) -> None:
    """As a parser would give it that a file has taken over."""
    path = write_pdf(tmp_path / "a.pdf")
    send, receive, asked = ParserProcess.send, ParserProcess.receive, []

    def note(self: ParserProcess, frame: Frame, source: int) -> None:
        asked.append(frame.header["index"])
        send(self, frame, source)

    def receive_nonsense(self: ParserProcess, bounds: FrameBounds, deadline: float) -> Frame:
        frame = receive(self, bounds, deadline)
        return Frame(header, (b"",) * blobs) if "suffix" in frame.header and asked[-1] == 1 else frame

    monkeypatch.setattr(ParserProcess, "send", note)
    monkeypatch.setattr(ParserProcess, "receive", receive_nonsense)
    assert codes(list(reader.pages(path, [0, 1, 2], OPTIONS))) == [0, "parser_crashed", 2]
    assert asked == [0, 1, 1, 2]


def test_a_child_killed_while_idle_is_replaced(reader: PdfReader, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    assert reader.inspect(path).page_count == 4
    pid = reader.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert reader.inspect(path).page_count == 4
    assert reader.pid != pid


def test_an_endless_page_is_parser_timeout_and_the_next_page_goes_on(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", contents={1: ENDLESS})
    began = time.monotonic()
    with PdfReader(PdfLimits(seconds_per_page=1.0)) as reader:
        assert codes(list(reader.pages(path, range(3), OPTIONS))) == [0, "parser_timeout", 2]
    assert time.monotonic() - began < 10


def test_an_endless_first_page_costs_its_time_once(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", contents={0: ENDLESS})
    began = time.monotonic()
    with PdfReader(PdfLimits(seconds_per_page=3.0)) as reader:
        assert codes(list(reader.pages(path, [0], OPTIONS))) == ["parser_timeout"]
    assert 3 < time.monotonic() - began < 6


def test_a_page_that_fills_the_memory_is_parser_memory(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", contents={1: ENDLESS})
    with PdfReader(PdfLimits(memory_bytes=300_000_000)) as reader:
        assert codes(list(reader.pages(path, range(3), OPTIONS))) == [0, "parser_memory", 2]


def test_a_deflate_bomb_ends_typed(tmp_path: Path) -> None:
    bomb = zlib.compress(b" " * 400_000_000, 9)
    path = write_pdf(tmp_path / "a.pdf", contents={1: b"%"})
    document = pymupdf.open(path)
    xref = document[1].get_contents()[0]
    document.update_stream(xref, bomb, compress=False)
    document.xref_set_key(xref, "Filter", "/FlateDecode")
    document.save(tmp_path / "bomb.pdf")
    with PdfReader(PdfLimits(seconds_per_page=5, memory_bytes=400_000_000)) as reader:
        results = codes(list(reader.pages(tmp_path / "bomb.pdf", range(3), OPTIONS)))
    assert results[0::2] == [0, 2]
    assert results[1] in (1, "parser_memory", "parser_timeout", "page_broken")


def test_a_parser_that_does_not_start_is_the_operators_error(
    reader: PdfReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(errors.EngineUnavailable, match="exit status 1"):
        reader.inspect(write_pdf(tmp_path / "a.pdf"))


def test_a_slow_caller_does_not_make_the_next_page_late(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    with PdfReader(PdfLimits(seconds_per_page=0.5)) as reader:
        results = reader.pages(path, range(3), OPTIONS)
        pages = [next(results)]
        pid = reader.pid
        time.sleep(0.8)
        assert codes(pages + list(results)) == [0, 1, 2]
        assert reader.pid == pid


def test_a_call_in_the_middle_of_an_iteration_disturbs_neither(reader: PdfReader, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    results = reader.pages(path, range(3), OPTIONS)
    pages = [next(results)]
    assert reader.inspect(path).page_count == 4
    assert codes(pages + list(results)) == [0, 1, 2]


def test_an_abandoned_iteration_leaves_a_usable_reader(reader: PdfReader, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    for _ in reader.pages(path, range(4), OPTIONS):
        break
    assert codes(list(reader.pages(path, [3], OPTIONS))) == [3]


def test_the_child_is_replaced_after_its_share_of_pages(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    with PdfReader(PdfLimits(pages_per_child=2)) as reader:
        pids = []
        for page in reader.pages(path, [0, 1, 2, 3], OPTIONS):
            assert isinstance(page, RenderedPage)
            pids.append(reader.pid)
        assert len(set(pids)) == 2


def test_a_child_that_could_run_out_of_cpu_time_is_replaced_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    monkeypatch.setattr("pipeline.pdf.process.read_usage", lambda pid: Usage(cpu_s=560.0))
    with PdfReader(PdfLimits(seconds_per_page=20)) as reader:  # 610 s in all, 60 s to open a file
        pids = [reader.pid for _ in reader.pages(path, [0, 1, 2], OPTIONS)]
    assert len(set(pids)) > 1


def test_memory_is_told_as_the_system_counts_it(reader: PdfReader, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    assert reader.peak_bytes == 0
    list(reader.pages(path, [0], RenderOptions(dpi=72)))
    small = reader.peak_bytes
    list(reader.pages(path, [0], RenderOptions(dpi=600, max_pixels=20_000_000)))
    assert 30_000_000 < small < reader.peak_bytes
    reader.close()
    assert reader.peak_bytes > small


def test_a_file_replaced_under_its_name_is_read_anew(reader: PdfReader, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", pages=1)
    assert codes(list(reader.pages(path, [0, 1], OPTIONS))) == [0, "page_broken"]
    write_pdf(tmp_path / "b.pdf", pages=2).replace(path)
    assert codes(list(reader.pages(path, [0, 1], OPTIONS))) == [0, 1]


def test_a_file_that_is_gone_is_source_missing(reader: PdfReader, tmp_path: Path) -> None:
    with pytest.raises(errors.SourceMissing):
        reader.inspect(tmp_path / "none.pdf")
    with pytest.raises(errors.SourceMissing):
        list(reader.pages(tmp_path / "none.pdf", [0], OPTIONS))


def test_a_file_that_goes_while_its_pages_are_read_is_read_to_the_end(reader: PdfReader, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    results = reader.pages(path, range(4), OPTIONS)
    first = next(results)
    write_pdf(tmp_path / "b.pdf", pages=1).replace(path)
    reader.close()  # even by another child
    assert codes([first, *results]) == [0, 1, 2, 3]


def test_what_is_no_file_is_source_missing_and_is_not_waited_for(reader: PdfReader, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pdf")
    for name in ("pipe.pdf", "."):
        with pytest.raises(errors.SourceMissing, match="is no file"):
            reader.inspect(tmp_path / name)


def test_a_file_that_is_cut_short_under_the_parser_ends_typed(reader: PdfReader, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", pages=5)
    results = reader.pages(path, range(5), OPTIONS)
    next(results)
    os.truncate(path, 100)
    pages = list(results)
    assert len(pages) == 4
    assert {page.code for page in pages if isinstance(page, errors.PageError)} <= {"parser_crashed", "page_broken"}
    assert codes(list(reader.pages(write_pdf(tmp_path / "b.pdf"), [0], OPTIONS))) == [0]


@pytest.mark.parametrize("name", [b"two words.pdf", "文件 😀.pdf".encode(), b"new\nline.pdf", b"\xff\xfe.pdf"])
def test_any_file_name_can_be_read(reader: PdfReader, tmp_path: Path, name: bytes) -> None:
    path = write_pdf(tmp_path / "a.pdf").rename(tmp_path / os.fsdecode(name))
    assert reader.inspect(path).page_count == 4
    assert codes(list(reader.pages(path, [1], OPTIONS))) == [1]


def test_close_kills_the_child_and_the_next_call_starts_another(reader: PdfReader, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf")
    reader.inspect(path)
    pid = reader.pid
    assert pid is not None
    reader.close()
    reader.close()
    assert not is_running(pid)
    assert reader.pid is None
    assert reader.inspect(path).page_count == 4


def test_the_child_is_confined(reader: PdfReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    reader.inspect(write_pdf(tmp_path / "a.pdf"))
    assert reader.pid is not None
    proc = Path(f"/proc/{reader.pid}")
    names = {line.partition("=")[0] for line in (proc / "environ").read_text().split("\0") if line}
    assert names == {"PATH", "LANG", "PYTHONPATH", "OPENBLAS_NUM_THREADS"}
    limits = dict(re.split(r"\s{2,}", line)[:2] for line in (proc / "limits").read_text().splitlines())
    assert limits["Max core file size"] == "0"
    assert limits["Max address space"] == str(2 * 1024**3)
    assert limits["Max file size"] == str(1 << 20)
    assert limits["Max cpu time"] == str(20 * 30 + 10)
    assert limits["Max processes"] == "0"
    assert os.getsid(reader.pid) == reader.pid


def test_a_child_in_an_endless_page_dies_with_its_parent(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", contents={1: ENDLESS})
    code = (
        "import sys; from pathlib import Path\n"
        "from pipeline.pdf import PdfReader; from pipeline.settings import PdfLimits, RenderOptions\n"
        "reader = PdfReader(PdfLimits()); pages = reader.pages(Path(sys.argv[1]), [0, 1], RenderOptions())\n"
        "next(pages); print(reader.pid, flush=True); next(pages)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("pipeline.pdf", {"pymupdf", "numpy", "pydantic"}),
        ("pipeline.pdf.child", {"pydantic", "sqlalchemy", "ray"}),
    ],
)
def test_imports_stay_small(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not absent & set(loaded.stdout.split())
