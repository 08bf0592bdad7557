"""The contract of `UploadLog`, on every database that the ledger runs on."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.domain import UploadedPart, UploadSession
from pipeline.protocols import UploadLog
from pipeline.stages import CODE_VERSIONS
from pipeline.stores.sql import SqlLedger
from tests.ledger_driver import Clock

SESSION = UploadSession(key="document/version/source/a.pdf", upload_id="u" * 300, sha256="a" * 64, size=9, part_bytes=2)
ANEW = dataclasses.replace(SESSION, upload_id="v")


@pytest.fixture
def log(ledger: SqlLedger) -> UploadLog:
    return ledger.uploads


def part(number: int, etag: str = "etag") -> UploadedPart:
    return UploadedPart(number=number, size=2, etag=f"{etag}-{number}")


def test_a_session_is_found_by_its_key_by_any_process(log: UploadLog, url: str) -> None:
    assert log.find(SESSION.key) is None
    log.begin(SESSION)

    other = SqlLedger(url, CODE_VERSIONS)
    assert log.find(SESSION.key) == other.uploads.find(SESSION.key) == SESSION
    assert log.find(SESSION.key.upper()) is None
    other.close()


def test_parts_are_noted_in_any_order_and_the_last_etag_of_a_number_counts(log: UploadLog) -> None:
    log.begin(SESSION)
    for noted in (part(3), part(1, "older"), part(1), part(3)):
        log.note(SESSION, noted)

    assert log.parts(SESSION) == {1: "etag-1", 3: "etag-3"}


def test_a_session_begun_anew_has_no_parts_and_hears_nothing_of_the_old_one(log: UploadLog) -> None:
    log.begin(SESSION)
    log.note(SESSION, part(1))
    log.begin(ANEW)
    log.note(SESSION, part(2))
    log.note(ANEW, part(3))

    assert log.find(SESSION.key) == ANEW
    assert log.parts(SESSION) == {}
    assert log.parts(ANEW) == {3: "etag-3"}


def test_beginning_again_the_same_changes_only_its_parts(log: UploadLog) -> None:
    log.begin(SESSION)
    log.note(SESSION, part(1))
    log.begin(SESSION)

    assert log.find(SESSION.key) == SESSION
    assert log.parts(SESSION) == {}


def test_a_forgotten_session_is_gone_with_its_parts(log: UploadLog) -> None:
    log.begin(SESSION)
    log.note(SESSION, part(1))

    log.forget(SESSION)
    log.forget(SESSION)
    log.note(SESSION, part(2))

    assert log.find(SESSION.key) is None
    log.begin(SESSION)
    assert log.parts(SESSION) == {}


def test_forgetting_a_session_leaves_the_one_that_was_begun_after_it(log: UploadLog) -> None:
    log.begin(SESSION)
    log.begin(ANEW)
    log.note(ANEW, part(1))

    log.forget(SESSION)

    assert log.find(SESSION.key) == ANEW
    assert log.parts(ANEW) == {1: "etag-1"}


def test_sessions_of_other_keys_are_left_alone(log: UploadLog) -> None:
    other = dataclasses.replace(SESSION, key="document/version/source/b.pdf")
    for session in (SESSION, other):
        log.begin(session)
        log.note(session, part(1))

    log.forget(SESSION)

    assert log.find(other.key) == other
    assert log.parts(other) == {1: "etag-1"}


def test_a_session_is_stale_when_nothing_was_noted_for_so_long(log: UploadLog, clock: Clock) -> None:
    other = dataclasses.replace(SESSION, key="document/version/source/b.pdf")
    for session in (SESSION, other):
        log.begin(session)
    clock.pass_seconds(50)
    log.note(SESSION, part(1))
    log.note(SESSION, part(1))  # of the same moment, and still noted
    clock.pass_seconds(50)

    assert log.stale(60) == [other]
    assert log.stale(100) == []
    assert {session.key for session in log.stale(40)} == {SESSION.key, other.key}


def test_the_databases_own_clock_says_what_is_stale(url: str) -> None:
    ledger = SqlLedger(url, CODE_VERSIONS)
    ledger.migrate()
    ledger.uploads.begin(SESSION)

    assert ledger.uploads.stale(60) == []
    assert ledger.uploads.stale(-60) == [SESSION]
    ledger.close()


def test_many_may_begin_and_note_at_once(log: UploadLog) -> None:
    sessions = [dataclasses.replace(SESSION, upload_id=f"upload {number}") for number in range(4)]

    def work(session: UploadSession) -> None:
        log.begin(session)
        for number in range(1, 9):
            log.note(session, part(number, session.upload_id))

    with ThreadPoolExecutor(len(sessions)) as pool:
        list(pool.map(work, sessions))

    kept = log.find(SESSION.key)
    assert kept in sessions
    assert log.parts(kept) == {number: f"{kept.upload_id}-{number}" for number in range(1, 9)}


def test_many_may_note_the_same_parts_of_one_session(log: UploadLog) -> None:
    log.begin(SESSION)

    def work(worker: int) -> None:
        for number in range(1, 9):
            log.note(SESSION, part(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))

    assert log.parts(SESSION) == {number: f"etag-{number}" for number in range(1, 9)}
