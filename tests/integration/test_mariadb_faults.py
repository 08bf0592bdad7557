"""The ledger when its database fails: whole transactions are run again, and nothing is done twice."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest
from sqlalchemy import Connection, create_engine, event, insert, select, text, update

from pipeline.domain import GateVerdict, StageName
from pipeline.errors import ConfigurationError, LedgerUnavailable
from pipeline.metadata import DocumentMetadata
from pipeline.stages import CODE_VERSIONS
from pipeline.stores.sql import SqlLedger
from pipeline.stores.sql.tables import documents, outbox, page_tasks, pages, served_pages, submissions, versions
from tests import ledger_driver as driver
from tests.ledger_driver import LEASE_S, WORKER

pytestmark = pytest.mark.mariadb


@pytest.fixture
def ledger(mysql_url: str) -> Iterator[SqlLedger]:
    opened = driver.open_ledger(mysql_url)
    yield opened
    opened.close()


def publish_all(ledger: SqlLedger) -> None:
    """Two versions of a document, one of them with a scanned page, and their events."""
    for name, content in (("6" * 36, "A"), ("7" * 36, "B")):
        ledger.submissions.submit("acme", "file:///a.pdf", DocumentMetadata(labels=("x",)), submission_id=name)
        driver.take_in(ledger, content)
        driver.run_stages(ledger, ocr_pages=[1])
        assert driver.pass_gate(ledger) == GateVerdict.PROMOTED
    ledger.outbox.published([event.id for event in ledger.outbox.claim(100, 0)])


def state_of(ledger: SqlLedger) -> Mapping[str, Any]:
    """All that matters of a ledger's rows: no tokens, times or serial numbers."""
    columns = {
        "documents": (documents.c.current_version_id, documents.c.current_revision, documents.c.generation),
        "submissions": (submissions.c.id, submissions.c.state, submissions.c.version_id, submissions.c.attempts),
        "versions": (versions.c.id, versions.c.metadata),
        "tasks": (page_tasks.c.fingerprint, page_tasks.c.state, page_tasks.c.attempts, page_tasks.c.outputs),
        "manifest": (served_pages.c.version_id, served_pages.c.page_index, served_pages.c.point_id),
        "events": (outbox.c.submission_id, outbox.c.kind),
    }

    def read(connection: Connection) -> dict[str, Any]:
        return {name: sorted(map(repr, connection.execute(select(*wanted)))) for name, wanted in columns.items()}

    return ledger.database.read(read)


def empty(ledger: SqlLedger) -> None:
    """As after `driver.open_ledger`, without the half-second that a new database costs."""

    def work(connection: Connection) -> None:
        for table in ("documents", "submissions", "versions", "pages", "page_tasks", "version_builds", "served_pages"):
            connection.execute(text(f"DELETE FROM {table}"))
        connection.execute(text("DELETE FROM outbox"))

    ledger.database.write(work)


class Statements:
    """Counts statements as the server gets them, and kills the connection before the one that a test names."""

    def __init__(self, ledger: SqlLedger, url: str) -> None:
        self.count = 0
        self.kill_at: int | None = None
        self.last: tuple[str, Any] = ("", None)
        self._admin = create_engine(url)
        event.listen(ledger.database.engine, "before_cursor_execute", self._before)

    def _before(
        self, connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool
    ) -> None:
        bulk = many and statement.startswith("INSERT")  # PyMySQL sends these as one
        self.count += len(parameters) if many and not bulk else 1
        self.last = (statement, parameters) if "SKIP LOCKED" in statement else self.last
        if self.kill_at is not None and self.count >= self.kill_at:
            self.kill_at = None
            mine = connection.connection.dbapi_connection.thread_id()
            with self._admin.connect() as admin:
                admin.execute(text(f"KILL {mine}"))


def test_a_connection_that_is_lost_at_any_statement_costs_nothing_but_time(ledger: SqlLedger, mysql_url: str) -> None:
    statements = Statements(ledger, mysql_url)
    publish_all(ledger)
    undisturbed, total = state_of(ledger), statements.count
    for kill_at in range(1, total, 11):
        empty(ledger)
        statements.count, statements.kill_at = 0, kill_at
        publish_all(ledger)
        assert statements.kill_at is None, "the connection was killed"
        assert state_of(ledger) == undisturbed, f"killed before statement {kill_at}"


@pytest.mark.parametrize("committed", [True, False], ids=["the commit was done", "the commit was not done"])
def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_done_twice(
    ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    commits = 0
    lose_at: int | None = None
    dialect: Any = ledger.database.engine.dialect
    do_commit = dialect.do_commit

    def commit(connection: Any) -> None:
        nonlocal commits, lose_at
        commits += 1
        if commits != lose_at:
            do_commit(connection)
            return
        if committed:
            do_commit(connection)
        connection.dbapi_connection.close()
        raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")

    monkeypatch.setattr(dialect, "do_commit", commit)
    publish_all(ledger)
    undisturbed, total = state_of(ledger), commits
    for lost in range(1, total + 1, 2):
        empty(ledger)
        commits, lose_at = 0, lost
        publish_all(ledger)
        assert commits > lost
        assert state_of(ledger) == undisturbed, f"lost commit {lost}"


def test_of_two_transactions_that_block_each_other_the_one_that_is_chosen_runs_again(ledger: SqlLedger) -> None:
    ids = [driver.submit(ledger, f"file:///{name}.pdf").id for name in "ab"]
    meet, runs = threading.Barrier(2), []

    def add(order: list[str]) -> None:
        first = True

        def work(connection: Connection) -> None:
            nonlocal first
            runs.append(order)
            for place, submission in enumerate(order):
                row = update(submissions).where(submissions.c.id == submission)
                connection.execute(row.values(attempts=submissions.c.attempts + 1))
                if first and place == 0:
                    first = False
                    meet.wait(10)

        ledger.database.write(work)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(add, [ids, ids[::-1]]))
    assert [submission.attempts for submission in ledger.views.submissions(ids)] == [2, 2]
    assert len(runs) >= 3, "one of them was rolled back and ran again"


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    ledger = SqlLedger("mysql+pymysql://somebody:hunter2@127.0.0.1:1/pagegate", CODE_VERSIONS)
    with pytest.raises(LedgerUnavailable) as error:
        ledger.views.idle()
    assert "127.0.0.1:1" in error.value.message
    assert "hunter2" not in str(error.value) + repr(error.value)


# What a claim costs


def add_rows(ledger: SqlLedger, rows: int) -> None:
    """As many pending pages of one version as asked for; only a render row each, as claims see them."""
    driver.submit(ledger)
    version = driver.take_in(ledger, "A", pages=1)
    like = ledger.database.read(lambda c: dict(c.execute(select(page_tasks)).mappings().one()))
    task = {name: value for name, value in like.items() if name not in ("id", "page_id", "fingerprint")}

    def work(connection: Connection) -> None:
        numbers = range(1, rows)
        labels = [{"version_id": version, "page_index": number, "page_label": ""} for number in numbers]
        connection.execute(insert(pages), labels)
        query = select(pages.c.id).where(pages.c.page_index > 0).order_by(pages.c.id)
        page_ids = connection.execute(query).scalars()
        tasks = [{**task, "page_id": page, "fingerprint": f"{page:064d}"} for page in page_ids]
        for start in range(0, len(tasks), 2000):
            connection.execute(insert(page_tasks), tasks[start : start + 2000])

    ledger.database.write(work)


def test_a_claim_reads_its_rows_from_the_index_in_order(ledger: SqlLedger, mysql_url: str) -> None:
    statements = Statements(ledger, mysql_url)
    add_rows(ledger, 3000)
    assert ledger.tasks.claim(StageName.RENDER, 16, LEASE_S, WORKER) is not None
    statement, parameters = statements.last
    with ledger.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE page_tasks")
        (plan,) = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings()
    assert plan["key"] == "page_tasks_claim"
    assert "filesort" not in plan["Extra"] and "temporary" not in plan["Extra"]


def test_a_window_costs_the_same_number_of_statements_whatever_its_size(ledger: SqlLedger, mysql_url: str) -> None:
    statements = Statements(ledger, mysql_url)
    costs = []
    for pages_ in (4, 64):
        empty(ledger)
        driver.submit(ledger)
        driver.take_in(ledger, "A", pages=pages_)
        statements.count = 0
        window = driver.claim(ledger, StageName.RENDER, limit=64)
        driver.finish(ledger, window)
        assert len(window.tasks) == pages_
        costs.append(statements.count)
    assert costs[0] == costs[1]


def test_four_that_claim_at_once_never_get_the_same_page(ledger: SqlLedger) -> None:
    add_rows(ledger, 1600)

    def claim_all(worker: int) -> list[int]:
        claimed: list[int] = []
        while window := ledger.tasks.claim(StageName.RENDER, 16, LEASE_S, f"worker-{worker}"):
            claimed += [task.id for task in window.tasks]
        return claimed

    with ThreadPoolExecutor(4) as threads:
        claimed = [task for tasks in threads.map(claim_all, range(4)) for task in tasks]
    assert len(claimed) == len(set(claimed)) == 1600


# Migrations


def test_two_that_migrate_at_once_do_it_once(mysql_url: str) -> None:
    def migrate(_: int) -> None:
        with contextlib.closing(SqlLedger(mysql_url, CODE_VERSIONS)) as ledger:
            ledger.migrate()
            ledger.check_schema()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(migrate, range(3)))


def test_a_migration_that_was_killed_half_way_goes_on(mysql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op

    create_table, made = op.create_table, []

    def die_at_the_second(name: str, *columns: Any, **options: Any) -> Any:
        if name == "uploads":
            raise KeyboardInterrupt
        made.append(name)
        return create_table(name, *columns, **options)

    with contextlib.closing(SqlLedger(mysql_url, CODE_VERSIONS)) as ledger:
        monkeypatch.setattr(op, "create_table", die_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            ledger.migrate()
        monkeypatch.undo()
        assert made[-1] == "outbox"
        with pytest.raises(ConfigurationError, match="pagegate migrate"):
            ledger.check_schema()
        ledger.migrate()
        ledger.check_schema()


def test_a_schema_that_is_not_this_releases_is_refused_with_what_to_do(mysql_url: str) -> None:
    with contextlib.closing(SqlLedger(mysql_url, CODE_VERSIONS)) as ledger:
        with pytest.raises(ConfigurationError, match="run `pagegate migrate`"):
            ledger.check_schema()
        ledger.migrate()
        ledger.database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999'")))
        for ask in (ledger.check_schema, ledger.migrate):
            with pytest.raises(ConfigurationError, match="later release"):
                ask()
