"""Names are for ever: these literals may never change."""

from __future__ import annotations

import pytest

from pipeline.identity import (
    artifact_key,
    build_id,
    canonical,
    describe_changes,
    digest,
    document_id,
    point_id,
    version_id,
)


def test_ids_never_change() -> None:
    document = document_id("acme", "file:///manual.pdf", 1)
    version = version_id(document, "0" * 64)
    build = build_id("1" * 64, 1)
    assert document == "719d7fa9-117f-50de-a896-3b0911cf164e"
    assert version == "6d61359f-973c-5556-9d14-9a04660f2e6c"
    assert build == "1bb09b0a-5717-5227-aa5a-128107ba9b9b"
    assert point_id(build, version, 3, "2" * 64) == "a5d1842e-aa07-598a-a5b3-96c2ba2d40b2"


def test_fingerprints_never_change() -> None:
    assert digest({"b": [1, 2.5, "ü"], "a": None}) == "3ca4eda1ebfd02e4296104981a1e65d4e87e99084ac993fafbc515a8f6a8ad84"


def test_the_order_of_keys_does_not_matter() -> None:
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})


def test_parts_of_an_id_cannot_run_into_each_other() -> None:
    assert document_id("ab", "c", 1) != document_id("a", "bc", 1)


def test_the_same_source_in_two_orgs_is_two_documents() -> None:
    assert document_id("acme", "file:///a.pdf", 1) != document_id("other", "file:///a.pdf", 1)


def test_numbers_that_json_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        canonical(float("nan"))


def test_a_key_is_made_of_ids_and_the_digest() -> None:
    assert artifact_key("d", "v", 12, "image", "f" * 64, ".jpg") == f"d/v/00012/image/{'f' * 64}.jpg"


def test_changes_are_told_option_by_option() -> None:
    old = {"render": {"dpi": 150, "quality": 85}, "ocr": {"engine": "rapidocr"}}
    new = {"render": {"dpi": 200, "quality": 85}, "text": {"force_ocr": True}}
    assert describe_changes(old, new) == (
        "ocr.engine: rapidocr → absent, render.dpi: 150 → 200, text.force_ocr: absent → True"
    )
