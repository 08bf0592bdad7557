"""Short transactions, run again as a whole when the database asks for it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tenacity
from sqlalchemy import URL, Connection, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from pipeline.errors import ConfigurationError, DiskFull, LedgerUnavailable

T = TypeVar("T")

SQLITE_NOW = "SELECT CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
MYSQL_NOW = "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"

MYSQL_AGAIN = {1205, 1213, 1020, 1062, 2006, 2013, 2055}
"""Lock wait time-out, deadlock, record changed, key taken (another transaction inserted the same row first: the
next try finds it), and three ways to say that the connection is lost.

A commit whose answer was lost is among them: every transaction here may be run again, because it looks for its
own token first."""

SQLITE_TAKEN = {sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE}
SQLITE_AGAIN = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
BUSY_TIMEOUT_MS = 10_000
LOCK_S = 300
"""How long a migration waits for another one."""
ATTEMPTS = 8


class Database:
    """One engine. `clock` replaces the database's own time in tests (microseconds since the epoch)."""

    def __init__(self, url: str | URL, clock: Callable[[], int] | None = None) -> None:
        """Raises `ConfigurationError` for a URL of no database that this code can use; asks nothing of it yet."""
        self._clock = clock
        try:
            self.url = make_url(url)
            self.sqlite = self.url.get_backend_name() == "sqlite"
            self.engine = create_engine(self.url, **({} if self.sqlite else _MYSQL_OPTIONS))
        except (ArgumentError, ModuleNotFoundError) as error:
            raise ConfigurationError(
                "ledger.url is not one of a database at hand: use sqlite:///FILE or mysql+pymysql://USER:PASSWORD@HOST/"
                "DATABASE, the latter with pip install 'pagegate[mysql]'"
            ) from error
        if self.sqlite:
            event.listen(self.engine, "connect", _configure_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction that may write; again, whole, after a deadlock or a lost connection.

        Raises `LedgerUnavailable` when the database does not answer, `DiskFull` when it has no room.
        """
        return self._run(work, {"write": True})

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction that only reads."""
        return self._run(work, {})

    def now(self, connection: Connection) -> int:
        if self._clock:
            return self._clock()
        return int(connection.execute(text(SQLITE_NOW if self.sqlite else MYSQL_NOW)).scalar_one())

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Held by one process at a time, on MySQL and MariaDB across transactions; it ends with its connection.

        On SQLite the transaction itself is that lock. Raises `LedgerUnavailable` if another one keeps it too long.
        """
        if self.sqlite:
            yield
            return
        with self.engine.connect() as connection:
            held = {"name": f"{name}:{self.url.database}"[-64:], "wait": LOCK_S}
            if connection.execute(text("SELECT GET_LOCK(:name, :wait)"), held).scalar() != 1:
                raise LedgerUnavailable(f"another process has held the lock {held['name']} for {LOCK_S} s: wait for it")
            try:
                yield
            finally:
                connection.execute(text("SELECT RELEASE_LOCK(:name)"), held)

    def close(self) -> None:
        self.engine.dispose()

    def _run(self, work: Callable[[Connection], T], options: dict[str, Any]) -> T:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_again),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=2),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            sleep=time.sleep,
            reraise=True,
        )
        try:
            result: T = retrying(self._once, work, options)
            return result
        except DBAPIError as error:
            raise self._translate(error) from error

    def _once(self, work: Callable[[Connection], T], options: dict[str, Any]) -> T:
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            return work(connection)

    def _translate(self, error: DBAPIError) -> Exception:
        """Only what the database itself failed at; a broken constraint or statement is a bug and stays one."""
        place = self.url.render_as_string(hide_password=True)
        if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return DiskFull(f"no room for the ledger at {place}: free space on its disk")
        if _again(error) or _unreachable(error):
            return LedgerUnavailable(f"the ledger at {place} does not answer: {error.orig}")
        return error


_MYSQL_OPTIONS: dict[str, Any] = {
    "isolation_level": "READ COMMITTED",
    "pool_pre_ping": True,
    "pool_recycle": 1800,
    "connect_args": {"charset": "utf8mb4", "init_command": "SET time_zone = '+00:00'", "connect_timeout": 10},
}


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    """SQLAlchemy is to say when a transaction begins; sqlite3's own guessing is off.

    `synchronous=NORMAL` with a write-ahead log loses nothing when a process is killed; a power loss may lose the
    last commits, which are then done again.
    """
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={BUSY_TIMEOUT_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """Two deferred transactions that both turn writers fail at once, so a writer says so from the start."""
    writes = connection.get_execution_options().get("write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _again(error: BaseException) -> bool:
    """Whether the whole transaction may do better a second time."""
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", 0)
        return code in SQLITE_TAKEN or code & 0xFF in SQLITE_AGAIN
    return error.connection_invalidated or _mysql_code(error) in MYSQL_AGAIN


def _unreachable(error: DBAPIError) -> bool:
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        return code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}
    return 2000 <= _mysql_code(error) < 3000 or _mysql_code(error) in {1040, 1053}


def _mysql_code(error: DBAPIError) -> int:
    args = getattr(error.orig, "args", ())
    return args[0] if args and isinstance(args[0], int) else 0
