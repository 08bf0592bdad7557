"""What the business knows of a document: what is accepted, when it is in force, and who may see it."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from pipeline.errors import ConfigurationError
from pipeline.metadata import FOR_EVER, DocumentMetadata, Scope, in_force, parse_metadata


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"titel": "x"}, "titel"),
        ({"title": ""}, "title"),
        ({"type": "two\nlines"}, "type"),
        ({"labels": [" padded"]}, "labels"),
        ({"labels": ["x" * 65]}, "labels.0"),
        ({"published": "yesterday"}, "published"),
        ({"attributes": {"pages": 12}}, "attributes.pages"),
        ({"effective": "2024-01-01", "expired": "2024-01-01"}, "metadata"),
        ({"published": "2024-02-01", "expired": "2024-01-01"}, "metadata"),
    ],
)
def test_metadata_that_say_nothing_sensible_are_refused_by_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}: "):
        parse_metadata(values)


def test_a_refused_value_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_metadata({"published": "hunter2"})
    assert "hunter2" not in str(error.value)


def test_equal_metadata_are_stored_equal() -> None:
    first = parse_metadata({"labels": ["b", "a", "a"], "attributes": {}, "published": "2024-01-01"})
    second = parse_metadata({"labels": ("a", "b"), "published": datetime.date(2024, 1, 1), "title": None})
    assert first.stored() == second.stored() == {"labels": ["a", "b"], "published": "2024-01-01"}
    assert DocumentMetadata.model_validate(first.stored()) == first


def test_it_is_in_force_from_the_day_it_becomes_effective_or_else_from_that_of_its_publication() -> None:
    day = datetime.date(2024, 5, 1)
    earlier = datetime.date(2024, 1, 1)
    assert DocumentMetadata(published=earlier, effective=day).in_force_from == day.toordinal()
    assert DocumentMetadata(published=earlier).in_force_from == earlier.toordinal()
    assert (DocumentMetadata().in_force_from, DocumentMetadata().in_force_until) == (0, FOR_EVER)
    assert datetime.date.max.toordinal() < FOR_EVER


def test_the_given_title_goes_before_that_of_the_file() -> None:
    assert DocumentMetadata(title="Presses").about("scan0001")["title"] == "Presses"
    assert DocumentMetadata().about("x" * 9999)["title"] == "x" * 500


@pytest.mark.parametrize(
    ("day", "version"),
    [
        (9, None),
        (10, "first"),
        (19, "first"),
        (20, "second"),
        (25, "amendment"),
        (28, "second"),
        (30, None),
        (40, "third"),
        (99, "third"),
    ],
)
def test_on_each_day_at_most_one_version_is_in_force(day: int, version: str | None) -> None:
    periods = [
        (40, 4, FOR_EVER, "third"),
        (25, 3, 28, "amendment"),
        (10, 1, FOR_EVER, "first"),
        (20, 2, 30, "second"),
    ]
    assert in_force(periods, day) == version


def test_of_two_that_begin_on_one_day_the_later_revision_is_in_force() -> None:
    assert in_force([(10, 2, FOR_EVER, "corrected"), (10, 1, FOR_EVER, "first")], 10) == "corrected"
    assert in_force([(10, 2, 20, "corrected"), (10, 1, FOR_EVER, "first")], 20) is None


def test_a_scope_without_a_tenant_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="no tenant"):
        Scope(org="")


def test_a_scope_admits_its_type_and_any_of_its_labels() -> None:
    about = DocumentMetadata(type="manual", labels=("a", "b")).about("t")
    assert Scope(org="o").admits(about)
    assert Scope(org="o", type="manual", labels=("b", "c")).admits(about)
    assert not Scope(org="o", type="policy").admits(about)
    assert not Scope(org="o", labels=("c",)).admits(about)
    assert not Scope(org="o", type="manual").admits(DocumentMetadata().about("t"))
