"""What the installation has agreed on: the profile in force and the index builds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select

from pipeline.domain import BuildState, EncoderContract, IndexBuild, Profile
from pipeline.identity import build_id, digest
from pipeline.stores.sql.advancing import current_profile, live_builds
from pipeline.stores.sql.database import Database
from pipeline.stores.sql.tables import builds, profiles

Options = Mapping[str, Mapping[str, Any]]


class Registry:
    """See `pipeline.protocols.Registry` for the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def profile(self) -> Profile | None:
        return self._database.read(current_profile)

    def adopt(self, options: Options) -> Profile:
        return self._database.write(lambda connection: self._adopt(connection, options))

    def builds(self) -> list[IndexBuild]:
        return self._database.read(live_builds)

    def active_build(self) -> IndexBuild | None:
        return next((build for build in self.builds() if build.state == BuildState.ACTIVE), None)

    def found(self, options: Options, contract: EncoderContract) -> None:
        """Make the first profile and the first build of an empty ledger; otherwise change nothing."""

        def work(connection: Connection) -> None:
            if current_profile(connection) is None:
                self._adopt(connection, options)
            if connection.execute(select(builds.c.id).limit(1)).first() is None:
                self._create_build(connection, contract, BuildState.ACTIVE)

        if self.profile() is None or not self.builds():
            self._database.write(work)

    def _adopt(self, connection: Connection, options: Options) -> Profile:
        current = current_profile(connection)
        if current and current.digest == digest(options):
            return current
        new = Profile(revision=current.revision + 1 if current else 1, options=options, digest=digest(options))
        row = dataclasses.asdict(new) | {"adopted_at": self._database.now(connection)}
        connection.execute(insert(profiles), [row])
        return new

    def _create_build(self, connection: Connection, contract: EncoderContract, state: BuildState) -> None:
        described = dataclasses.asdict(contract)
        ordinal = len(connection.execute(select(builds.c.id)).all()) + 1
        new = build_id(digest(described), ordinal)
        row = {
            "id": new,
            "collection": f"pages-{new}",
            "contract": described,
            "contract_digest": digest(described),
            "state": state,
            "created_at": self._database.now(connection),
        }
        connection.execute(insert(builds), [row])
