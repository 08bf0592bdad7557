"""The ledger: one database, and one object for each kind of row in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, select

from pipeline.domain import StageName, VersionBuildState
from pipeline.errors import ConfigurationError
from pipeline.stores.sql.advancing import advance_version, current_profile, live_builds, reopen_gates
from pipeline.stores.sql.audits import Audits
from pipeline.stores.sql.database import Database
from pipeline.stores.sql.decisions import Decisions
from pipeline.stores.sql.gates import Gates, is_served
from pipeline.stores.sql.outbox import Outbox
from pipeline.stores.sql.registry import Registry
from pipeline.stores.sql.submissions import Submissions
from pipeline.stores.sql.tables import documents, profiles, version_builds, versions
from pipeline.stores.sql.tasks import Tasks
from pipeline.stores.sql.uploads import Uploads
from pipeline.stores.sql.views import Views

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = "pagegate_migrate"
VERSIONS_PER_SWEEP = 4


class SqlLedger:
    """See `pipeline.protocols.Ledger` for the contract."""

    def __init__(
        self,
        url: str,
        code_versions: Mapping[StageName, int],
        attempts: int = 3,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """`code_versions` are the stages' versions that this process can do; `attempts` are the counted failures
        after which a page is given up; `clock` replaces the database's own in tests."""
        self.database = Database(url, clock)
        self.submissions = Submissions(self.database, attempts)
        self.tasks = Tasks(self.database, code_versions, attempts)
        self.gates = Gates(self.database, self.tasks)
        self.registry = Registry(self.database)
        self.decisions = Decisions(self.database)
        self.audits = Audits(self.database, self.tasks)
        self.outbox = Outbox(self.database)
        self.uploads = Uploads(self.database)
        self.views = Views(self.database)

    def migrate(self) -> None:
        """Bring the schema up to this code's, one process at a time; does nothing if it is.

        Raises `ConfigurationError` if it was made by a later release.
        """
        if self._schema() != _head():
            self._check_not_later()
            with self.database.lock(MIGRATION_LOCK):
                config = _alembic()
                config.attributes["engine"] = self.database.engine
                command.upgrade(config, "head")

    def check_schema(self) -> None:
        found = self._schema()
        if found != _head():
            self._check_not_later()
            raise ConfigurationError(
                f"the ledger's schema is {found or 'not there'}, this release needs {_head()}: run `pagegate migrate`"
            )

    def sweep(self) -> int:
        """Find what was lost: overdue leases, and versions whose pages were planned under an older profile.

        Returns how many rows were taken back or planned anew. Cheap when there is nothing.
        """
        return self.tasks.sweep() + self.submissions.sweep() + self.gates.sweep() + self._replan()

    def release(self, worker: str | None) -> int:
        """Give back, uncharged, all that `worker` holds; None: all that anybody holds."""
        return self.tasks.release(worker) + self.submissions.release(worker) + self.gates.release(worker)

    def abandon(self, worker: str) -> int:
        """Take back at once what a worker that is known to be dead held, as if its leases had run out."""
        return self.tasks.abandon(worker) + self.submissions.release(worker) + self.gates.release(worker)

    def close(self) -> None:
        self.database.close()

    def _schema(self) -> str | None:
        return self.database.read(lambda connection: MigrationContext.configure(connection).get_current_revision())

    def _check_not_later(self) -> None:
        found = self._schema()
        if found and found not in {
            script.revision for script in ScriptDirectory.from_config(_alembic()).walk_revisions()
        }:
            raise ConfigurationError(f"the ledger's schema {found} is of a later release: use that, or a later one")

    def _replan(self) -> int:
        return sum(self._replan_version(version) for version in self.database.read(_stale_versions))

    def _replan_version(self, version_id: str) -> int:
        def work(connection: Connection) -> int:
            now = self.database.now(connection)
            touched = advance_version(connection, version_id, now)
            if touched == 0:  # all of it was done before, under an earlier profile like this one
                _revalidate(connection, version_id, now)
            newest = select(func.max(profiles.c.revision)).scalar_subquery()
            statement = versions.update().where(versions.c.id == version_id)
            connection.execute(statement.values(profile_revision=newest))
            return touched

        return self.database.write(work)


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


@functools.cache
def _head() -> str:
    head = ScriptDirectory.from_config(_alembic()).get_current_head()
    assert head  # noqa: S101 - there are migrations
    return head


def _revalidate(connection: Connection, version_id: str, now: int) -> None:
    """Have the gate look again if what is served is not what the profile in force makes."""
    pages = connection.execute(select(versions.c.page_count).where(versions.c.id == version_id)).scalar_one()
    if not all(is_served(connection, version_id, pages, build) for build in live_builds(connection)):
        reopen_gates(connection, {version_id}, now)


def _stale_versions(connection: Connection) -> list[str]:
    """Versions that are served or on their way, and planned under an older profile than that in force."""
    profile = current_profile(connection)
    if profile is None:
        return []
    on_their_way = select(version_builds.c.version_id).where(
        version_builds.c.state.in_([VersionBuildState.PROCESSING, VersionBuildState.VALIDATING])
    )
    served = select(documents.c.current_version_id).where(documents.c.current_version_id.is_not(None))
    query = (
        select(versions.c.id)
        .where(
            versions.c.profile_revision < profile.revision,
            versions.c.id.in_(served) | versions.c.id.in_(on_their_way),
        )
        .limit(VERSIONS_PER_SWEEP)
    )
    return list(connection.execute(query).scalars())
