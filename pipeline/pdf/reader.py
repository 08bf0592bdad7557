"""The parent's side: PDFs are read by a child that may crash, hang or burst, and pages come out typed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

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
)
from pipeline.pdf.frames import Frame, FrameBounds
from pipeline.pdf.process import ParserProcess
from pipeline.pdf.source import Source, open_source

if TYPE_CHECKING:  # the child imports this package too, and must not load pydantic
    from pipeline.settings import PdfLimits, RenderOptions

Answer = TypeVar("Answer")

_OPENING_PAGES = 3
"""Opening a file (a repair reads all of it) may take as long as this many pages."""
_BYTES_PER_PIXEL = 4
_EVIDENCE_PER_TEXT = 4
"""Evidence adds boxes to the text; more than so many times the text's bound is refused by the child, too."""
_FRESH_START = (ParserCrashed, ParserTimeout, ParserMemory)
"""What may be the fault of a page before: worth one try in a new child."""
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

    def answer(self, parse: Callable[[Frame], Answer]) -> Answer:
        """What `parse` makes of the answer; raises the error that it is. Nothing that it says is trusted."""
        frame = self.process.receive(self.bounds, self.deadline)
        try:
            if "error" not in frame.header:
                return parse(frame)
            error = _BY_CODE[frame.header["error"]](_field(frame.header, "message", str))
        except (KeyError, TypeError, ValueError) as nonsense:
            raise ParserCrashed(f"the parser answered nonsense: {nonsense!r}") from nonsense
        raise error


class PdfReader:
    """Reads PDFs in a child process, which it replaces when it dies, is stuck, or is worn out.

    For one thread and one call at a time: the child dies with the thread that started it, and a call made
    while an iterator of `pages` is unfinished makes that iterator ask again.
    """

    def __init__(self, limits: PdfLimits) -> None:
        self._limits = limits
        self._process: ParserProcess | None = None
        self._peak_bytes = 0

    @property
    def pid(self) -> int | None:
        """The child's process id, if there is a child now."""
        return self._process.pid if self._process else None

    @property
    def peak_bytes(self) -> int:
        """The most that a child of this reader was seen to hold in memory at once; not that of one that crashed."""
        self._note_peak()
        return self._peak_bytes

    def inspect(self, path: Path) -> PdfInfo:
        """What intake needs to know of the file at `path`.

        Raises `SourceMissing`, `FileTooLarge`, `NotAPdf` (also where the parser crashes or hangs on opening
        it, twice), `NoPages`, `Encrypted`, `TooManyPages`.
        """
        with open_source(path) as source:
            self._check_size(source)
            try:
                return self._inspect_twice(source)
            except PageError as error:
                raise NotAPdf(f"{path.name!r} cannot be opened: {error.message}") from error

    def pages(self, path: Path, indices: Sequence[int], options: RenderOptions) -> Iterator[RenderedPage | PageError]:
        """One result for each of `indices`, in their order; a page's failure is yielded, not raised.

        The child works on the next page while the caller handles the current one, and never on two. A page at
        which it died, hung or ran out of memory gets one more try, alone in a fresh child, before that is its
        result; a page that was the first thing its child did was alone already. All pages are of the file that
        was at `path` when the first was asked for.

        Raises `SourceMissing` where there was none, `StoreUnavailable` where it cannot be opened.
        """
        pending: _Pending | None = None
        with open_source(path) as source:
            try:
                for at, index in enumerate(indices):
                    result = self._page(pending, source, index, options)
                    pending = self._post_page(source, indices[at + 1], options) if at + 1 < len(indices) else None
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

    def _check_size(self, source: Source) -> None:
        if source.size > self._limits.file_bytes:
            raise FileTooLarge(
                f"{source.name!r} has {source.size:,} bytes; limits.file_bytes allows {self._limits.file_bytes:,}"
            )

    def _page(
        self, pending: _Pending | None, source: Source, index: int, options: RenderOptions
    ) -> RenderedPage | PageError:
        pending = pending or self._post_page(source, index, options)
        try:
            return self._render(pending, index)
        except _FRESH_START as error:
            self.close()
            if pending.process.requests == 1:
                return _of_page(error, index, source)
        try:
            return self._render(self._post_page(source, index, options), index)
        except _FRESH_START as error:
            self.close()
            return _of_page(error, index, source)

    def _render(self, pending: _Pending, index: int) -> RenderedPage | PageError:
        """The answer; raises only what a fresh child may do better."""
        try:
            return pending.answer(lambda frame: _to_page(frame, index))
        except _FRESH_START:
            raise
        except PageError as error:
            return error
        except DocumentError as error:
            return PageBroken(f"page {index}: the file cannot be opened any more: {error.message}")

    def _post_page(self, source: Source, index: int, options: RenderOptions) -> _Pending:
        header = {
            "do": "page",
            "source": source.identity,
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
        pending = self._post(Frame(header), source, self._page_bounds(options), self._limits.seconds_per_page)
        pending.process.pages += 1
        return pending

    def _inspect_twice(self, source: Source) -> PdfInfo:
        """Twice even of a fresh child: a document is refused for good, so one bad moment must not do it."""
        try:
            return self._post_inspect(source).answer(_to_info)
        except _FRESH_START:
            self.close()
        try:
            return self._post_inspect(source).answer(_to_info)
        except _FRESH_START:
            self.close()
            raise

    def _post_inspect(self, source: Source) -> _Pending:
        request = Frame({"do": "inspect", "source": source.identity, "max_pages": self._limits.pages})
        return self._post(request, source, self._inspect_bounds(), self._opening_seconds)

    @property
    def _opening_seconds(self) -> float:
        return self._limits.seconds_per_page * _OPENING_PAGES

    def _post(self, request: Frame, source: Source, bounds: FrameBounds, seconds: float) -> _Pending:
        process = self._usable_process()
        process.send(request, source.fd)
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
        return (
            process.pages >= self._limits.pages_per_child
            or process.usage.anonymous > self._limits.memory_bytes // 2
            or not process.has_cpu_for(self._opening_seconds)
        )

    def _note_peak(self) -> None:
        if self._process is not None:
            self._peak_bytes = max(self._peak_bytes, self._process.usage.peak)

    def _drop(self, process: ParserProcess) -> None:
        process.kill()
        self._note_peak()
        if self._process is process:
            self._process = None

    def _inspect_bounds(self) -> FrameBounds:
        return FrameBounds(header=4_000_000 + 400 * self._limits.pages, blobs=0)

    def _page_bounds(self, options: RenderOptions) -> FrameBounds:
        evidence = self._limits.text_bytes * _EVIDENCE_PER_TEXT
        return FrameBounds(header=100_000, blobs=options.max_pixels * _BYTES_PER_PIXEL + evidence + 1_000_000)


def _of_page(error: PageError, index: int, source: Source) -> PageError:
    return type(error)(f"page {index} of {source.name!r}: {error.message}")


def _to_info(frame: Frame) -> PdfInfo:
    header = frame.header
    labels = _words(header, "page_labels")
    if len(labels) != _field(header, "page_count", int):
        raise ValueError("not as many labels as pages")
    return PdfInfo(
        page_count=len(labels),
        title=_field(header, "title", str),
        page_labels=labels,
        repaired=_field(header, "repaired", bool),
        attachments=_words(header, "attachments"),
        xfa=_field(header, "xfa", bool),
    )


def _to_page(frame: Frame, index: int) -> RenderedPage:
    image, evidence = frame.blobs
    header = frame.header
    return RenderedPage(
        page_index=index,
        image=image,
        image_suffix=_field(header, "suffix", str),
        width=_field(header, "width", int),
        height=_field(header, "height", int),
        dpi=_field(header, "dpi", float),
        evidence=evidence,
    )


def _words(header: dict[str, Any], name: str) -> tuple[str, ...]:
    words = _field(header, name, list)
    if not all(isinstance(word, str) for word in words):
        raise TypeError(f"{name} are not all words")
    return tuple(words)


def _field(header: dict[str, Any], name: str, kind: type[Answer]) -> Answer:
    value = header[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} is no {kind.__name__}")
    return value
