"""The error tree: its class decides, and it survives a process boundary."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from pipeline import errors
from pipeline.errors import (
    ArtifactLost,
    ConfigurationError,
    DocumentError,
    InfrastructureError,
    PageError,
    PagegateError,
)


def tree(kind: type[PagegateError] = PagegateError) -> Iterator[type[PagegateError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from tree(below)


@pytest.mark.parametrize("kind", list(tree()))
def test_an_error_survives_pickling(kind: type[PagegateError]) -> None:
    error = pickle.loads(pickle.dumps(kind("page 3 is broken", key="a/b")))
    assert type(error) is kind
    assert (error.message, str(error), error.context) == ("page 3 is broken", "page 3 is broken", {"key": "a/b"})


def test_every_code_belongs_to_one_class() -> None:
    codes = [kind.code for kind in tree() if kind.__module__ == errors.__name__]
    assert len(codes) == len(set(codes))


def test_codes_fit_their_column() -> None:
    assert max(len(kind.code) for kind in tree()) <= 32


def test_only_faults_of_the_page_are_charged_to_it() -> None:
    assert all(kind.counted for kind in tree(PageError))
    assert not any(kind.counted for kind in tree() if not issubclass(kind, PageError))


def test_infrastructure_is_always_tried_again() -> None:
    assert all(kind.retryable for kind in tree(InfrastructureError))
    assert ArtifactLost.retryable


@pytest.mark.parametrize(
    ("kind", "code"), [(ConfigurationError, 2), (InfrastructureError, 3), (DocumentError, 1), (PageError, 1)]
)
def test_the_exit_code_belongs_to_the_class(kind: type[PagegateError], code: int) -> None:
    assert {below.exit_code for below in tree(kind)} == {code}
