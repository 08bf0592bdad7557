# mypy: untyped-calls-exclude=pymupdf
"""An opened PDF, in the child: is it one, how many pages has it really, what does it say of itself."""

from __future__ import annotations

import mmap
from typing import Any

import pymupdf
from pymupdf import mupdf

from pipeline.errors import Encrypted, NoPages, NotAPdf, PageBroken, ParserMemory, TooManyPages
from pipeline.pdf.labels import page_labels
from pipeline.pdf.words import clean_line

PARSER_ERRORS = (mupdf.FzErrorBase, RuntimeError, ValueError, IndexError)
"""What PyMuPDF raises over a broken file. Anything else is a fault of the child, and ends it."""
MEMORY_ERRORS = (mupdf.FzErrorSystem, MemoryError)
"""FzErrorSystem is what a failed malloc is to MuPDF (its other use, a failed read, is rare on a disk)."""

_HEADER_BYTES = 1024
_TITLE_CHARS = 500
_ATTACHMENTS = 1000
_NAME_CHARS = 255


class OpenPdf:
    """One file's content, kept open between requests for its pages, and not copied.

    Raises `NotAPdf`, `Encrypted`, `ParserMemory`.
    """

    def __init__(self, content: mmap.mmap | bytes) -> None:
        self._content = content
        self._view = memoryview(content)
        self._document = _open(self._view)
        self._labels: list[str] | None = None

    def close(self) -> None:
        """Unmaps the content last: until then the parser has pointers into it."""
        self._document.close()
        pymupdf.TOOLS.store_shrink(100)
        self._view.release()
        if isinstance(self._content, mmap.mmap):
            self._content.close()

    @property
    def page_count(self) -> int:
        """As of now: loading a page may repair the file and change it."""
        return int(self._document.page_count)

    def load(self, index: int) -> pymupdf.Page:
        """A fresh page object. Raises `PageBroken` where there is none, besides what the parser raises."""
        if not 0 <= index < self.page_count:
            raise PageBroken(f"there is no page {index}: the file has {self.page_count}")
        page: pymupdf.Page = self._document.load_page(index)
        return page

    def label(self, index: int) -> str:
        """The printed label, ``""`` if none."""
        if self._labels is None or index >= len(self._labels):
            self._labels = self._read_labels()
        return self._labels[index]

    def describe(self, max_pages: int) -> dict[str, Any]:
        """The fields of `PdfInfo`. Raises `NoPages`, `TooManyPages`."""
        self._settle_pages(max_pages)
        return {
            "page_count": self.page_count,
            "title": clean_line((self._document.metadata or {}).get("title") or "")[:_TITLE_CHARS],
            "page_labels": self._read_labels(),
            "repaired": bool(self._document.is_repaired or pymupdf.TOOLS.mupdf_warnings()),
            "attachments": self._attachments(),
            "xfa": self._has_xfa(),
        }

    def _settle_pages(self, max_pages: int) -> None:
        """Load the ends of the page tree until the count stands still; at least one page must be there."""
        before = -1
        while (count := self.page_count) != before:
            if count == 0:
                raise NoPages("the file has no page that can be read; it is damaged or cut short")
            if count > max_pages:
                raise TooManyPages(f"the file has {count:,} pages; limits.pages allows {max_pages:,}")
            before = count
            if not (self._loads(count - 1) and self._loads(0)) and not any(map(self._loads, range(count))):
                raise NoPages(f"the file says {count} pages, and not one of them can be read")

    def _loads(self, index: int) -> bool:
        try:
            self._document.load_page(index)
        except MEMORY_ERRORS:
            raise
        except PARSER_ERRORS:
            return False
        return True

    def _read_labels(self) -> list[str]:
        """Labels are a courtesy: a file whose rules are broken has none."""
        try:
            return page_labels(self._pdf(), self.page_count)
        except MEMORY_ERRORS:
            raise
        except PARSER_ERRORS:
            return [""] * self.page_count

    def _attachments(self) -> list[str]:
        try:
            names = self._document.embfile_names()
        except MEMORY_ERRORS:
            raise
        except PARSER_ERRORS:
            return []
        return [clean_line(name)[:_NAME_CHARS] for name in names[:_ATTACHMENTS]]

    def _has_xfa(self) -> bool:
        """A form in XFA or pages that only running one would make (/NeedsRendering, ISO 32000-1)."""
        root = mupdf.pdf_dict_gets(mupdf.pdf_trailer(self._pdf()), "Root")
        form = mupdf.pdf_dict_gets(mupdf.pdf_dict_gets(root, "AcroForm"), "XFA")
        return bool(form.m_internal) or bool(mupdf.pdf_to_bool(mupdf.pdf_dict_gets(root, "NeedsRendering")))

    def _pdf(self) -> mupdf.PdfDocument:
        return mupdf.pdf_document_from_fz_document(self._document.this)


def map_file(fd: int, size: int) -> mmap.mmap | bytes:
    """The content of an open file, read-only. Raises `ParserMemory` where it finds no room in limits.memory_bytes.

    A file that is cut short later is a SIGBUS, which the parent sees as a crash.
    """
    if size == 0:
        return b""
    try:
        return mmap.mmap(fd, size, prot=mmap.PROT_READ)  # given a size, it does without the fstat it may not make
    except (OSError, ValueError) as error:
        raise ParserMemory(f"the file's {size:,} bytes cannot be mapped: {error}") from error


def _open(content: memoryview) -> pymupdf.Document:
    if b"%PDF-" not in bytes(content[:_HEADER_BYTES]):
        raise NotAPdf(f"no %PDF- in its first {_HEADER_BYTES} bytes: it is no PDF, whatever its name says")
    pymupdf.TOOLS.reset_mupdf_warnings()
    try:
        document = pymupdf.open(stream=content, filetype="pdf")
    except MEMORY_ERRORS as error:
        raise ParserMemory("no memory to open the file") from error
    except PARSER_ERRORS as error:
        if isinstance(error.__cause__ or error.__context__, MEMORY_ERRORS):
            raise ParserMemory("no memory to open the file") from error
        raise NotAPdf("the parser finds no PDF in it: it is damaged beyond repair") from error
    if not document.is_pdf:
        raise NotAPdf("the file says %PDF-, but it is something else")
    if document.needs_pass and not document.authenticate(""):
        raise Encrypted("the file needs a password to be opened: submit a copy without one")
    return document
