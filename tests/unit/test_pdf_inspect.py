# mypy: untyped-calls-exclude=pymupdf
"""What intake learns of a file: is it a PDF at all, its pages, their printed labels, what is odd about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pymupdf
import pytest

from pipeline import errors
from pipeline.pdf import PdfReader
from pipeline.pdf.labels import format_number
from pipeline.settings import PdfLimits

AES_256 = 5
"""pymupdf.PDF_ENCRYPT_AES_256, which is made at run time."""


@pytest.fixture(scope="module")
def reader() -> Iterator[PdfReader]:
    with PdfReader(PdfLimits(file_bytes=1_000_000, pages=30)) as reader:
        yield reader


def new_document(pages: int = 1) -> pymupdf.Document:
    document = pymupdf.open()
    for _ in range(pages):
        document.new_page()
    return document


def with_labels(path: Path, rules: str, pages: int = 6) -> Path:
    document = new_document(pages)
    document.xref_set_key(document.pdf_catalog(), "PageLabels", rules)
    document.save(path)
    return path


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", errors.NotAPdf),
        (b"<html><body>Not found</body></html>", errors.NotAPdf),
        (b"<html>%PDF-</html>", errors.NotAPdf),
        (b"PK\x03\x04" + bytes(2000) + b"%PDF-1.4", errors.NotAPdf),
        (b"%PDF-1.4\nand no more", errors.NotAPdf),
        (b"%PDF-1.4\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n", errors.NoPages),
        (b"%PDF-1.4" + bytes(1_000_000), errors.FileTooLarge),
    ],
)
def test_what_is_no_document_ends_typed(
    reader: PdfReader, tmp_path: Path, content: bytes, error: type[errors.DocumentError]
) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(content)
    with pytest.raises((errors.NotAPdf, errors.NoPages) if error is errors.NoPages else error):
        reader.inspect(path)


def test_a_header_within_the_first_kilobyte_is_accepted(reader: PdfReader, tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(b"junk\n" * 100 + new_document().tobytes())
    assert reader.inspect(path).page_count == 1


def test_too_many_pages_are_refused(reader: PdfReader, tmp_path: Path) -> None:
    new_document(31).save(tmp_path / "a.pdf")
    with pytest.raises(errors.TooManyPages, match="30"):
        reader.inspect(tmp_path / "a.pdf")


@pytest.mark.parametrize(("user", "refused"), [("secret", True), ("", False)])
def test_only_a_password_that_is_needed_refuses(reader: PdfReader, tmp_path: Path, user: str, refused: bool) -> None:
    new_document().save(tmp_path / "a.pdf", encryption=AES_256, user_pw=user, owner_pw="owner")
    if refused:
        with pytest.raises(errors.Encrypted):
            reader.inspect(tmp_path / "a.pdf")
    else:
        assert reader.inspect(tmp_path / "a.pdf").page_count == 1


def test_a_repaired_file_is_accepted_and_says_so(reader: PdfReader, tmp_path: Path) -> None:
    whole = new_document(2).tobytes()
    (tmp_path / "whole.pdf").write_bytes(whole)
    (tmp_path / "cut.pdf").write_bytes(whole[: whole.rindex(b"xref")])
    assert not reader.inspect(tmp_path / "whole.pdf").repaired
    repaired = reader.inspect(tmp_path / "cut.pdf")
    assert (repaired.page_count, repaired.repaired) == (2, True)


def test_the_title_is_one_clean_line(reader: PdfReader, tmp_path: Path) -> None:
    document = new_document()
    document.set_metadata({"title": "\x00 手册\x07\n\tpart  1 "})
    document.save(tmp_path / "a.pdf")
    assert reader.inspect(tmp_path / "a.pdf").title == "手册 part 1"


def test_attachments_and_xfa_are_noted(reader: PdfReader, tmp_path: Path) -> None:
    document = new_document()
    document.embfile_add("plan.xlsx", b"never opened")
    document.xref_set_key(document.pdf_catalog(), "NeedsRendering", "true")
    document.save(tmp_path / "a.pdf")
    told = reader.inspect(tmp_path / "a.pdf")
    assert (told.attachments, told.xfa) == (("plan.xlsx",), True)


@pytest.mark.parametrize(
    ("rules", "labels"),
    [
        ("<</Nums[0<</S/r>>2<</S/D>>]>>", ("i", "ii", "1", "2", "3", "4")),
        ("<</Nums[0<</S/D/St 9>>3<</S/A/P(A-)/St 26>>]>>", ("9", "10", "11", "A-Z", "A-AA", "A-BB")),
        ("<</Nums[0<</P(a/b)>>1<</P<FEFF9644>/S/D>>]>>", ("a/b", "附1", "附2", "附3", "附4", "附5")),
        (
            "<</Kids[<</Kids[<</Nums[0<</S/R>>]>>]>><</Nums[4<</S/a>>]>>]>>",
            ("I", "II", "III", "IV", "a", "b"),
        ),
        ("<</Nums[2<</S/D>>]>>", ("", "", "1", "2", "3", "4")),
        ("<</Nums 7>>", ("",) * 6),
        ("null", ("",) * 6),
    ],
)
def test_labels_are_what_is_printed(reader: PdfReader, tmp_path: Path, rules: str, labels: tuple[str, ...]) -> None:
    assert reader.inspect(with_labels(tmp_path / "a.pdf", rules)).page_labels == labels


def test_a_loop_of_label_rules_ends(reader: PdfReader, tmp_path: Path) -> None:
    document = new_document()
    xref = document.get_new_xref()
    document.update_object(xref, f"<</Kids[{' '.join([f'{xref} 0 R'] * 9)}]>>")
    document.xref_set_key(document.pdf_catalog(), "PageLabels", f"{xref} 0 R")
    document.save(tmp_path / "a.pdf")
    assert reader.inspect(tmp_path / "a.pdf").page_labels == ("",)


@pytest.mark.parametrize(
    ("style", "number", "text"),
    [
        ("D", 12, "12"),
        ("R", 1994, "MCMXCIV"),
        ("r", 4, "iv"),
        ("a", 27, "aa"),
        ("A", 53, "AAA"),
        ("r", 0, ""),
    ],
)
def test_numbers_in_every_style(style: str, number: int, text: str) -> None:
    assert format_number(style, number) == text
