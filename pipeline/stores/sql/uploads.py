"""Sessions of uploads by parts, and the ETags of the parts that were sent."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from pipeline.domain import UploadedPart, UploadSession
from pipeline.stores.sql.database import Database
from pipeline.stores.sql.records import AnyRow
from pipeline.stores.sql.tables import upload_parts, uploads


class Uploads:
    """See `pipeline.protocols.UploadLog` for the contract.

    A key has one session at a time. What a process says of another session than that one changes nothing, and finds
    nothing: its key's session was begun anew, by somebody else, with parts of its own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, key: str) -> UploadSession | None:
        query = select(uploads).where(uploads.c.key == key)
        row = self._database.read(lambda connection: connection.execute(query).first())
        return _session(row) if row else None

    def begin(self, session: UploadSession) -> None:
        def work(connection: Connection) -> None:
            connection.execute(delete(uploads).where(uploads.c.key == session.key))  # and whoever notes a part waits
            connection.execute(delete(upload_parts).where(upload_parts.c.key == session.key))
            row = {
                "key": session.key,
                "upload_id": session.upload_id,
                "sha256": session.sha256,
                "size": session.size,
                "part_bytes": session.part_bytes,
                "noted_at": self._database.now(connection),
            }
            connection.execute(insert(uploads), [row])

        self._database.write(work)

    def note(self, session: UploadSession, part: UploadedPart) -> None:
        def work(connection: Connection) -> None:
            touched = update(uploads).where(_current(session)).values(noted_at=self._database.now(connection))
            if connection.execute(touched).rowcount:  # and the session is locked
                earlier = upload_parts.c.key == session.key, upload_parts.c.number == part.number
                connection.execute(delete(upload_parts).where(*earlier))
                row = {"key": session.key, "number": part.number, "etag": part.etag}
                connection.execute(insert(upload_parts), [row])

        self._database.write(work)

    def parts(self, session: UploadSession) -> dict[int, str]:
        query = (
            select(upload_parts.c.number, upload_parts.c.etag)
            .join(uploads, uploads.c.key == upload_parts.c.key)
            .where(_current(session))
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return {row.number: row.etag for row in rows}

    def forget(self, session: UploadSession) -> None:
        def work(connection: Connection) -> None:
            if connection.execute(delete(uploads).where(_current(session))).rowcount:
                connection.execute(delete(upload_parts).where(upload_parts.c.key == session.key))

        self._database.write(work)

    def stale(self, older_than_s: float) -> list[UploadSession]:
        def work(connection: Connection) -> list[UploadSession]:
            before = self._database.now(connection) - int(older_than_s * 1e6)
            return [_session(row) for row in connection.execute(select(uploads).where(uploads.c.noted_at < before))]

        return self._database.read(work)


def _current(session: UploadSession) -> ColumnElement[bool]:
    return and_(uploads.c.key == session.key, uploads.c.upload_id == session.upload_id)


def _session(row: AnyRow) -> UploadSession:
    return UploadSession(
        key=row.key, upload_id=row.upload_id, sha256=row.sha256, size=row.size, part_bytes=row.part_bytes
    )
