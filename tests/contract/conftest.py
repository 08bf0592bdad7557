"""A fresh ledger on each database; the clock is a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.stores.sql import SqlLedger
from tests import ledger_driver as driver
from tests.ledger_driver import Clock


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mariadb":
        found: str = request.getfixturevalue("mysql_url")
        return found
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(url: str, clock: Clock) -> Iterator[SqlLedger]:
    opened = driver.open_ledger(url, clock=clock)
    yield opened
    opened.close()
