"""What more than one suite uses: sample documents, the shared corpus, the servers that scripts/services starts."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from actors.environment import own_ray
from scripts.samples import write_hostile, write_samples

own_ray()  # Ray reads its environment when it is first imported, by whichever test comes first

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three sample documents and questions.jsonl; read, never written."""
    folder = tmp_path_factory.mktemp("samples")
    write_samples(folder)
    return folder


@pytest.fixture(scope="session")
def hostile_samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of `scripts.samples.write_hostile`; read, never written."""
    folder = tmp_path_factory.mktemp("hostile")
    write_hostile(folder)
    return folder


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real PDFs beside the checkout; skips where there is none."""
    if not CORPUS.is_dir():
        pytest.skip("../shared/corpus is absent")
    return CORPUS


@pytest.fixture
def mysql_url() -> Iterator[str]:
    """The URL of a fresh MariaDB database, dropped after the test.

    Skips without a server, and fails instead where PAGEGATE_TEST_REQUIRE_SERVICES=1.
    """
    server = make_url(service_url("PAGEGATE_TEST_MYSQL_URL"))
    database = f"pagegate_{uuid.uuid4().hex}"
    engine = create_engine(server, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE DATABASE {database} CHARACTER SET utf8mb4"))
    yield server.set(database=database).render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP DATABASE {database}"))


@pytest.fixture
def amqp_url() -> str:
    """The URL of a RabbitMQ that all tests share: names of queues and exchanges are the test's to make and delete.

    Skips without a server, and fails instead where PAGEGATE_TEST_REQUIRE_SERVICES=1.
    """
    return service_url("PAGEGATE_TEST_AMQP_URL")


def service_url(variable: str) -> str:
    """The address of a server that scripts/services starts, from the environment."""
    return os.environ.get(variable) or unavailable(
        f'{variable} is unset: scripts/services start; eval "$(scripts/services env)"'
    )


def unavailable(hint: str) -> NoReturn:
    """Skips the test, and fails it instead where PAGEGATE_TEST_REQUIRE_SERVICES=1."""
    if os.environ.get("PAGEGATE_TEST_REQUIRE_SERVICES") == "1":
        pytest.fail(hint)
    pytest.skip(hint)
