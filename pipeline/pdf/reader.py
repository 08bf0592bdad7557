"""The parent's side: PDFs are read by a child that may crash, hang or burst, and pages come out typed."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pipeline import errors
from pipeline.errors import (
    DocumentError,
    FileTooLarge,
    NotAPdf,
    PageBroken,
    PageError,
    PagegateError,
    ParserCrashed,
    ParserMemory,
    ParserTimeout,
    SourceMissing,
)
from pipeline.pdf.frames import Frame, FrameBounds
from pipeline.pdf.process import ParserProcess

if TYPE_CHECKING:  # the child imports this package too, and must not load pydantic
    from pipeline.settings import PdfLimits, RenderOptions

_OPENING_PAGES = 3
"""Opening a file (a repair reads all of it) may take as long as this many pages."""
_BYTES_PER_PIXEL = 4
_EVIDENCE_PER_TEXT = 4
"""Evidence adds boxes to the text; more than so many times the text's bound is refused by the child, too."""
_FRESH_START = (ParserCrashed, ParserTimeout, ParserMemory)
"""What may be the fault of a page before: worth one try alone in a new child."""
_BY_CODE: dict[str, type[PagegateError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, DocumentError | PageError)
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PdfInfo:
    """What a file says of itself before any page is drawn."""

    page_count: int
    title: str
    """Cleaned of control characters; ``""`` if there is none."""
    page_labels: tuple[str, ...]
    """The printed label of every page, ``""`` where the file defines none."""
    repaired: bool
    """The parser had to repair damage, or to work around it."""
    attachments: tuple[str, ...]
    """Names of embedded files, which are not opened."""
    xfa: bool
    """Has an XFA form: a viewer that knows XFA may show more than the pages here."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RenderedPage:
    """One page's image and the evidence of its native text; both follow from page and options alone."""

    page_index: int
    image: bytes
    image_suffix: str
    """``.jpg``, ``.webp`` or ``.png``."""
    width: int
    height: int
    dpi: float
    """Effective: lower than asked for where the page is large."""
    evidence: bytes
    """UTF-8 JSON, described in `pipeline.pdf.evidence`. Boxes are in pixels of the image."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Pending:
    """A request that a child is at work on."""

    process: ParserProcess
    bounds: FrameBounds
    deadline: float

    def answer(self) -> Frame:
        frame = self.process.receive(self.bounds, self.deadline)
        if "error" in frame.header:
            raise _BY_CODE[frame.header["error"]](frame.header["message"])
        return frame


class PdfReader:
    """Reads PDFs in a child process, which it replaces when it dies, is stuck, or is worn out.

    For one thread and one call at a time: the child dies with the thread that started it, and a call made
    while an iterator of `pages` is unfinished makes that iterator ask again.
    """

    def __init__(self, limits: PdfLimits) -> None:
        self._limits = limits
        self._process: ParserProcess | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, if there is a child now."""
        return self._process.pid if self._process else None

    def inspect(self, path: Path) -> PdfInfo:
        """What intake needs to know of the file at `path`.

        Raises `SourceMissing`, `FileTooLarge`, `NotAPdf` (also where the parser crashes or hangs on opening
        it, twice), `NoPages`, `Encrypted`, `TooManyPages`.
        """
        self._check_file(path)
        header = {"do": "inspect", "max_pages": self._limits.pages}
        seconds = self._limits.seconds_per_page * _OPENING_PAGES
        try:
            frame = self._ask_twice(Frame(header, (os.fsencode(path),)), self._inspect_bounds(), seconds)
        except PageError as error:
            raise NotAPdf(f"{path.name!r} cannot be opened: {error.message}") from error
        return _to_info(frame.header)

    def pages(self, path: Path, indices: Sequence[int], options: RenderOptions) -> Iterator[RenderedPage | PageError]:
        """One result for each of `indices`, in their order; a page's failure is yielded, not raised.

        The child works on the next page while the caller handles the current one. A page at which the child
        died, hung or ran out of memory gets one more try, alone in a fresh child, before that is its result.
        Raises `SourceMissing` where there is no file at `path` any more.
        """
        pending: _Pending | None = None
        try:
            for at, index in enumerate(indices):
                result = self._page(pending, path, index, options)
                pending = self._post_page(path, indices[at + 1], options) if at + 1 < len(indices) else None
                yield result
        finally:
            if pending is not None:
                self._drop(pending.process)

    def close(self) -> None:
        """Kill the child. The next call starts another."""
        if self._process is not None:
            self._drop(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_file(self, path: Path) -> None:
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise SourceMissing(f"there is no file at {str(path)!r}") from error
        if size > self._limits.file_bytes:
            raise FileTooLarge(
                f"{path.name!r} has {size:,} bytes; limits.file_bytes allows {self._limits.file_bytes:,}"
            )

    def _page(
        self, pending: _Pending | None, path: Path, index: int, options: RenderOptions
    ) -> RenderedPage | PageError:
        try:
            return self._render(pending or self._post_page(path, index, options), index)
        except _FRESH_START:
            self.close()
        try:
            return self._render(self._post_page(path, index, options), index)
        except _FRESH_START as error:
            self.close()
            return type(error)(f"page {index} of {path.name!r}: {error.message}")

    def _render(self, pending: _Pending, index: int) -> RenderedPage | PageError:
        """The answer; raises only what a fresh child may do better, and `SourceMissing`."""
        try:
            return _to_page(pending.answer(), index)
        except (SourceMissing, *_FRESH_START):
            raise
        except PageError as error:
            return error
        except DocumentError as error:
            return PageBroken(f"page {index}: the file cannot be opened any more: {error.message}")

    def _post_page(self, path: Path, index: int, options: RenderOptions) -> _Pending:
        header = {
            "do": "page",
            "index": index,
            "options": {
                "dpi": options.dpi,
                "max_pixels": options.max_pixels,
                "image_format": options.image_format,
                "quality": options.quality,
                "longest_side_in": self._limits.longest_side_in,
                "text_bytes": self._limits.text_bytes,
                "evidence_bytes": self._limits.text_bytes * _EVIDENCE_PER_TEXT,
            },
        }
        frame = Frame(header, (os.fsencode(path),))
        pending = self._post(frame, self._page_bounds(options), self._limits.seconds_per_page)
        pending.process.pages += 1
        return pending

    def _ask_twice(self, request: Frame, bounds: FrameBounds, seconds: float) -> Frame:
        try:
            return self._post(request, bounds, seconds).answer()
        except _FRESH_START:
            self.close()
        try:
            return self._post(request, bounds, seconds).answer()
        except _FRESH_START:
            self.close()
            raise

    def _post(self, request: Frame, bounds: FrameBounds, seconds: float) -> _Pending:
        process = self._usable_process()
        process.send(request)
        return _Pending(process, bounds, time.monotonic() + seconds)

    def _usable_process(self) -> ParserProcess:
        """The child, or a fresh one where it is worn out or at work on what nobody waits for any more."""
        if self._process is not None and (self._process.awaited or self._is_worn_out(self._process)):
            self.close()
        if self._process is None:
            self._process = ParserProcess(self._limits)
        return self._process

    def _is_worn_out(self, process: ParserProcess) -> bool:
        """Memory is judged by what it holds, not by belief."""
        limits = self._limits
        return process.pages >= limits.pages_per_child or process.rss > limits.memory_bytes // 2

    def _drop(self, process: ParserProcess) -> None:
        process.kill()
        if self._process is process:
            self._process = None

    def _inspect_bounds(self) -> FrameBounds:
        return FrameBounds(header=4_000_000 + 400 * self._limits.pages, blobs=0)

    def _page_bounds(self, options: RenderOptions) -> FrameBounds:
        evidence = self._limits.text_bytes * _EVIDENCE_PER_TEXT
        return FrameBounds(header=100_000, blobs=options.max_pixels * _BYTES_PER_PIXEL + evidence + 1_000_000)


def _to_info(header: dict[str, Any]) -> PdfInfo:
    return PdfInfo(
        page_count=header["page_count"],
        title=header["title"],
        page_labels=tuple(header["page_labels"]),
        repaired=header["repaired"],
        attachments=tuple(header["attachments"]),
        xfa=header["xfa"],
    )


def _to_page(frame: Frame, index: int) -> RenderedPage:
    image, evidence = frame.blobs
    header = frame.header
    return RenderedPage(
        page_index=index,
        image=image,
        image_suffix=header["suffix"],
        width=header["width"],
        height=header["height"],
        dpi=header["dpi"],
        evidence=evidence,
    )
