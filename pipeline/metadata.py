"""What the business knows of a document, and what a question may see."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.errors import ConfigurationError

SINCE_EVER, FOR_EVER = 0, 3_652_060
"""Days before 0001-01-01 and after 9999-12-31, as `date.toordinal` counts them."""
TITLE_CHARS = 500

Text = Annotated[str, Field(min_length=1, max_length=1000)]
Word = Annotated[str, Field(min_length=1, max_length=64)]


class DocumentMetadata(BaseModel):
    """Given with a submission; kept on the version and in the payload of its points.

    A version is in force from `effective` (without it from `published`, without both since ever) until the day
    before `expired`, or until the next version of its document comes into force. `labels` say who below the org
    may see it: a knowledge base, a department.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    title: Annotated[str, Field(min_length=1, max_length=TITLE_CHARS)] | None = None
    """Instead of the title that the file itself names."""
    type: Word | None = None
    """Manual, policy, standard …"""
    published: datetime.date | None = None
    effective: datetime.date | None = None
    expired: datetime.date | None = None
    labels: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    attributes: Annotated[dict[Word, Text], Field(max_length=64)] = {}

    @field_validator("title", "type", "labels", "attributes")
    @classmethod
    def _is_printable(cls, value: Any) -> Any:
        words = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        for word in [words] if isinstance(words, str) else words or ():
            if not word.isprintable() or word != word.strip():
                raise ValueError("use printable characters, and no space at either end")
        return value

    @field_validator("labels")
    @classmethod
    def _each_label_once(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(labels)))

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.in_force_from >= self.in_force_until:
            raise ValueError("expired must be later than effective (or published, where that is not given)")
        return self

    @property
    def in_force_from(self) -> int:
        """First day in force, as `date.toordinal` counts."""
        begins = self.effective or self.published
        return begins.toordinal() if begins else SINCE_EVER

    @property
    def in_force_until(self) -> int:
        """First day no longer in force."""
        return self.expired.toordinal() if self.expired else FOR_EVER

    def stored(self) -> dict[str, Any]:
        """As JSON, without what is not given: equal metadata are stored equal."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def about(self, title: str) -> dict[str, Any]:
        """What the payload of each of its points says of the document; `title` is the file's own."""
        return {
            "labels": [],
            **self.stored(),
            "title": (self.title or title)[:TITLE_CHARS],
            "in_force_from": self.in_force_from,
            "in_force_until": self.in_force_until,
        }


def parse_metadata(values: Mapping[str, Any]) -> DocumentMetadata:
    """Raises `ConfigurationError` naming the field that is wrong, never its value."""
    try:
        return DocumentMetadata.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "metadata"
        raise ConfigurationError(f"{field}: {first['msg']}") from error


Period = tuple[int, int, int, str]
"""Of a version: first day in force, revision, first day no longer, id."""


def in_force(periods: Iterable[Period], day: int) -> str | None:
    """The version of one document that was in force on `day`: of those that had begun and not ended, the one that
    began last, and of several on one day that of the latest revision.

    A version that names no end of its own ends where the next one begins, and does not come back when that ends.
    """
    begun = sorted(period for period in periods if period[0] <= day)
    valid = [period for period in begun if day < period[2] and (period[2] != FOR_EVER or period is begun[-1])]
    return valid[-1][3] if valid else None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What one question may see: pages of one org, narrowed by any of the other fields that is given."""

    org: str
    type: str | None = None
    labels: tuple[str, ...] = ()
    """A page must have at least one of these; empty: whatever labels it has."""
    as_of: datetime.date | None = None
    """Answer from the versions in force on that day, instead of each document's current one."""

    def __post_init__(self) -> None:
        if not self.org:
            raise ValueError("a search without an org: no tenant, no query")

    def admits(self, about: Mapping[str, Any]) -> bool:
        """Whether a document of the org is inside, by what its points' payload says; the day is asked apart."""
        labels_fit = not self.labels or not set(self.labels).isdisjoint(about["labels"])
        return labels_fit and self.type in (None, about.get("type"))
