"""The ledger as a state machine: whatever is submitted, delivered, crashed, lost or decided, in whatever order, every
invariant of the design holds after each step, and in the end all is as if nothing had gone wrong.

`PAGEGATE_MODEL_EXAMPLES=2000` runs that many examples, with another seed each time, which is printed; without it
their number fits into a test run, and they are always the same.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import sys
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from pipeline.domain import Message, StageName, TaskState
from pipeline.errors import ConfigurationError, InfrastructureError
from pipeline.garbage import sweep
from pipeline.identity import canonical
from pipeline.messages import SUBMISSION
from pipeline.metadata import DocumentMetadata
from tests.ledger_driver import LEASE_S
from tests.model.invariants import DAY, LABEL, ORGS, Invariants, accepted_metadata
from tests.model.making import CONTENT_OF, DPI, failures, lines, options, undisturbed
from tests.model.workers import Worker, stop_at_effects
from tests.model.world import CONSUMER, LEASED, RELAY, World

EXAMPLES = 60
STEPS = 40
WORKERS = 4
GRACE_S = 86_400.0
TO_THE_END = 100
BACKOFF_S = 10.0
"""Longer than a page waits that was charged once or twice."""
ROUND = [*LEASED, RELAY]
ROUNDS = 80
"""By then a fair scheduler has ended everything."""

org = st.sampled_from([ORGS[0], *ORGS])
document = st.integers(1, 2)
content = st.sampled_from([1, 2, 3, 0])
place = st.integers(0, 3)
label = st.booleans()
days = st.sampled_from([(0, 0), (10, 0), (20, 0), (10, 30), (20, 30)])
"""From and until which a version is in force, counted from `DAY`; 0: it names none."""


def metadata(label: bool, days: tuple[int, int]) -> DocumentMetadata:
    effective, expired = (DAY + datetime.timedelta(days=day) if day else None for day in days)
    return DocumentMetadata(labels=(LABEL,) if label else (), effective=effective, expired=expired)


def uri(document: int) -> str:
    return f"s3://inbox/{document}.pdf"


class Model(RuleBasedStateMachine):
    """Workers stand where they are until a rule moves them: a frozen one is just one that no rule can move."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.holds = Invariants(self.world)
        self.running: list[Worker] = []
        self.frozen: list[Worker] = []
        self.begun = 0

    # What is asked for

    @rule(org=org, document=document, content=content, label=label, days=days)
    def submit(self, org: str, document: int, content: int, label: bool, days: tuple[int, int]) -> None:
        self.world.sources.contents[uri(document)] = content
        self.world.ledger.submissions.submit(org, uri(document), metadata(label, days), submission_id=self._id())
        self.holds.check()

    @rule(org=org, document=document, content=content, label=label, days=days)
    def publish(self, org: str, document: int, content: int, label: bool, days: tuple[int, int]) -> None:
        """Somebody outside asks by a message."""
        self.world.sources.contents[uri(document)] = content
        self.world.broker.waiting.append((self._message(org, document, metadata(label, days)), 0))

    @precondition(lambda self: self.world.broker.waiting)
    @rule(place=place)
    def duplicate(self, place: int) -> None:
        waiting = self.world.broker.waiting
        waiting.append(waiting[place % len(waiting)])

    @rule()
    def wipe_broker(self) -> None:
        self.world.broker.waiting.clear()

    # Workers

    @precondition(lambda self: len(self.running) < WORKERS)
    @rule(place=st.integers(0, len(ROUND) - 1), effects=st.integers(1, 6))
    def begin(self, place: int, effects: int) -> None:
        """A worker of one of the kinds that have something to do."""
        kinds = [kind for kind in ROUND if self.world.pending(kind)]
        if kinds:
            self._advance(self._worker(kinds[place % len(kinds)]), effects)

    @precondition(lambda self: 0 < len(self.running) < WORKERS)
    @rule(worker=place, effects=st.integers(1, 3), late=st.booleans())
    def take_over(self, worker: int, effects: int, late: bool) -> None:
        """Its lease ends, and another one begins with the same; then the first one goes on, or not yet."""
        first = self.running[worker % len(self.running)]
        self._pass(LEASE_S + 1)
        self._pass(BACKOFF_S)
        if first.kind != CONSUMER:
            self._advance(self._worker(first.kind), effects)
        if late:
            self._advance(first, TO_THE_END)

    @precondition(lambda self: self.world.broker.waiting and len(self.running) < WORKERS)
    @rule(place=place, effects=st.integers(1, 3))
    def deliver(self, place: int, effects: int) -> None:
        """Any message, in any order; it stays with the broker until it is acknowledged."""
        waiting = self.world.broker.waiting
        self._advance(self._worker(CONSUMER, waiting[place % len(waiting)][0]), effects)

    @precondition(lambda self: self.running)
    @rule(worker=place, effects=st.integers(1, 6))
    def step(self, worker: int, effects: int) -> None:
        self._advance(self.running[worker % len(self.running)], effects)

    @precondition(lambda self: self.running)
    @rule(worker=place)
    def crash(self, worker: int) -> None:
        """What it held it holds until its lease ends."""
        self.running.pop(worker % len(self.running)).kill()
        self.holds.check()

    @precondition(lambda self: self.running)
    @rule(worker=place)
    def freeze(self, worker: int) -> None:
        self.frozen.append(self.running.pop(worker % len(self.running)))

    @precondition(lambda self: self.frozen)
    @rule(worker=place, effects=st.integers(1, 6))
    def thaw(self, worker: int, effects: int) -> None:
        thawed = self.frozen.pop(worker % len(self.frozen))
        self.running.append(thawed)
        self._advance(thawed, effects)

    @rule(upto=st.sampled_from(ROUND[::-1]), rounds=st.integers(1, 2))
    def work(self, upto: str, rounds: int) -> None:
        """One whole unit of each kind of work up to this one, undisturbed."""
        for _ in range(rounds):
            self._round(upto)

    @rule(org=org, document=document, content=content, label=label, days=days, gated=st.booleans())
    def ingest(self, org: str, document: int, content: int, label: bool, days: tuple[int, int], gated: bool) -> None:
        """Submitted, and worked on until all but its gate is done, or that too."""
        self.submit(org, document, content, label, days)
        for _ in range(2):
            self._round(RELAY if gated else StageName.INDEX)

    # Time, and what is lost in it

    @rule()
    def expire(self) -> None:
        """All leases end, and the sweeper sees it."""
        self._pass(LEASE_S + 1)

    @rule()
    def next_day(self) -> None:
        self._pass(GRACE_S + 1)

    @rule(place=st.integers(0, 30))
    def lose_object(self, place: int) -> None:
        """A put that was acknowledged is gone; a source can only be submitted again, so none is lost."""
        keys = [key for key in sorted(self.world.store.held) if "/source/" not in key]
        if keys:
            key = keys[place % len(keys)]
            del self.world.store.held[key]
            self.world.lost.add(key)
            self.holds.check()

    @rule(place=place)
    def lose_point(self, place: int) -> None:
        points = sorted(self.world.index.points(self.world.build.collection))
        if points:
            point = points[place % len(points)]
            with self.world.up():
                self.world.index.delete(self.world.build.collection, [point])
            self.world.lost.add(point)
            self.holds.check()

    @rule(part=st.sampled_from(["store", "index", "broker", "sources"]))
    def outage(self, part: str) -> None:
        self.world.parts[part].down = True

    @precondition(lambda self: any(part.down for part in self.world.parts.values()))
    @rule()
    def recover(self) -> None:
        for part in self.world.parts.values():
            part.down = False

    # What people decide

    @rule(dpi=st.sampled_from(DPI))
    def adopt(self, dpi: int) -> None:
        self.world.ledger.registry.adopt(options(dpi))
        self.holds.check()

    # Here come, with the index builds: upgrade the encoder, activate the new build, roll back, retire.

    @rule(org=org, document=document)
    def delete(self, org: str, document: int) -> None:
        with self._of_org_only(org):
            try:
                self.holds.deleted |= set(self.world.ledger.decisions.delete(org, uri(document)))
            except ConfigurationError:
                return  # there is none, or it is deleted
        self.holds.check("delete")

    @rule(org=org, document=document)
    def retry(self, org: str, document: int) -> None:
        with self._of_org_only(org):
            try:
                self.world.ledger.decisions.retry(org, uri(document))
            except ConfigurationError:
                return
        self.holds.check("retry")

    @rule(org=org, document=document, page=st.integers(0, 1))
    def waive(self, org: str, document: int, page: int) -> None:
        with self._of_org_only(org):
            try:
                self.world.ledger.decisions.waive(org, uri(document), page, "eva", "torn")
            except ConfigurationError:
                return
        self.holds.check("waive")

    @precondition(lambda self: not self.world.store.down and not self.world.index.down)
    @rule(grace_s=st.sampled_from([0.0, GRACE_S]))
    def gc(self, grace_s: float) -> None:
        """What it removes, nobody misses; and it removes what a dry run says."""
        before = self._findings()
        held = dict(self.world.store.held), set(self.world.index.points(self.world.build.collection))
        dry = sweep(self.world.audit, None, grace_s, dry=True)
        assert held == (self.world.store.held, set(self.world.index.points(self.world.build.collection)))
        swept = sweep(self.world.audit, None, grace_s, dry=False)
        assert (swept.objects, swept.points, swept.documents) == (dry.objects, dry.points, dry.documents)
        assert self._findings() <= before, "gc made new findings"
        self.holds.check("gc")

    @precondition(lambda self: not self.world.store.down and not self.world.index.down)
    @rule()
    def repair(self) -> None:
        self.world.audit.repair(list(self.world.audit.find(GRACE_S)), GRACE_S)
        self.holds.check("repair")

    # In the end

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # else a rule has failed already
                self._end_all()
        finally:
            for worker in [*self.running, *self.frozen]:
                worker.kill()
            self.world.close()

    def _end_all(self) -> None:
        """All is up again, everybody goes on, and a fair scheduler gets its time."""
        for part in self.world.parts.values():
            part.down = False
        for worker in [*self.frozen, *self.running]:
            self.running = [worker]
            self._advance(worker, TO_THE_END)
        self.frozen = []
        self._drain()
        while self._retry_crashed():
            self._drain()
        self._pass(2 * GRACE_S)
        self.world.audit.repair(list(self.world.audit.find(0.0)), 0.0)
        self.holds.check("repair")
        self._drain()
        left = [one for one in self.world.audit.find(0.0) if one.kind != "orphan object"]
        assert left == [], f"after a repair: {left}"
        sweep(self.world.audit, None, 0.0, dry=False)  # other outputs of rows that the repair opened again
        left = list(self.world.audit.find(0.0))
        assert left == [], f"after gc: {left}"
        self.holds.nothing_lost()
        self._all_ended()

    def _drain(self) -> None:
        for _ in range(ROUNDS):
            while self.world.broker.waiting:
                worker = self._worker(CONSUMER, self.world.broker.waiting[0][0])
                self._advance(worker, TO_THE_END)
            self._round()
            if self.world.ledger.views.idle() and not self.world.ledger.outbox.waiting():
                return
            self._pass(LEASE_S + 1)
        raise AssertionError(f"no end: {self.world.ledger.views.status(None)}")

    def _retry_crashed(self) -> bool:
        """What died with its workers is tried again, as a person would."""
        dump = self.world.dump()
        for row in dump["page_tasks"].values():
            found = dump["documents"][dump["versions"][row["version_id"]]["document_id"]]
            crashed = row["state"] == TaskState.FAILED and row["error_code"] == "worker_crashed"
            if crashed and found["deleted_at"] is None:
                self.world.ledger.decisions.retry(found["org"], row["version_id"])
                self.holds.check("retry")
                return True
        for row in dump["submissions"].values():
            found = dump["documents"][row["document_id"]]
            if row["error_code"] == "worker_crashed" and row["state"] == "failed" and found["deleted_at"] is None:
                self.world.ledger.decisions.retry(found["org"], row["id"])
                self.holds.check("retry")
                return True
        return False

    def _all_ended(self) -> None:
        dump = self.world.dump()
        told = Counter()
        for message in self.world.broker.events:
            content = json.loads(message.body)
            told[content["submission_id"], content["state"]] += 1
        waived = set(dump["waivers"])
        searchable: dict[str, int] = {}
        for id, row in dump["submissions"].items():
            assert row["state"] in ("searchable", "rejected", "failed"), f"{id} is {row['state']} for ever"
            assert told[id, row["state"]], f"nobody was told that {id} is {row['state']}"
            if row["document_id"] in self.holds.deleted:
                continue
            if row["version_id"] is None:
                assert (row["state"], row["error_code"]) == ("failed", "source_missing")
                continue
            content = CONTENT_OF[dump["versions"][row["version_id"]]["sha256"]]
            if row["state"] != "searchable":
                assert (row["state"], content) == ("rejected", 3), f"content {content} is {row['error_code']}"
            else:
                assert content != 3 or any(key[0] == row["version_id"] for key in waived)
                searchable[row["document_id"]] = max(searchable.get(row["document_id"], 0), row["revision"])
        for id, found in dump["documents"].items():
            if id not in self.holds.deleted:
                assert (found["current_revision"] or 0) == searchable.get(id, 0), "the latest revision is not shown"
                self._as_undisturbed(id)

    def _as_undisturbed(self, id: str) -> None:
        dump = self.world.dump()
        version = dump["documents"][id]["current_version_id"]
        if version is None:
            return
        profile = self.world.ledger.registry.profile()
        assert profile
        content = CONTENT_OF[dump["versions"][version]["sha256"]]
        made = undisturbed(
            id, content, accepted_metadata(version, dump)[0], profile.options["render"]["dpi"], self.world.build
        )
        waived = {(key[1], row["stage"], key[2]) for key, row in dump["waivers"].items() if key[0] == version}
        if failures(made) <= waived:  # else it passed under an earlier profile, and stays as it was
            manifest = self.world.ledger.views.manifest(version, self.world.build.id)
            assert [(page, point, image.key, text.key) for page, point, image, text in manifest] == lines(made)

    # Steps

    def _id(self) -> str:
        self.begun += 1
        return str(uuid.UUID(int=self.begun))

    def _message(self, org: str, document: int, metadata: DocumentMetadata) -> Message:
        content = {"schema": SUBMISSION, "submission_id": self._id(), "org": org, "source": uri(document)}
        body = canonical({**content, "metadata": metadata.stored()})
        return Message(topic="submission.registered", id="", body=body)

    def _worker(self, kind: str, message: Message | None = None) -> Worker:
        self.begun += 1
        worker = Worker(kind, f"{kind}-{self.begun}", self.world.work(kind, message), message)
        self.running.append(worker)
        return worker

    def _advance(self, worker: Worker, effects: int) -> None:
        for _ in range(effects):
            late = worker.kind in LEASED and worker.at is not None and not self.holds.holds(worker)
            self.world.clock.pass_seconds(0.001)
            try:
                at = worker.step()
            except InfrastructureError:
                at = None  # as an actor, it looks again later
            note(f"  {worker.name}: {at or 'ended'}")
            self.holds.check(late=worker if late else None)
            if worker.ended:
                self.running.remove(worker)
                self._acknowledge(worker)
                return

    def _acknowledge(self, worker: Worker) -> None:
        if worker.message:
            waiting = self.world.broker.waiting
            found = next((one for one in waiting if one[0] is worker.message), None)
            if found:
                waiting.remove(found)

    def _round(self, upto: str = RELAY) -> None:
        for kind in ROUND[: ROUND.index(upto) + 1]:
            self.world.clock.pass_seconds(0.001)
            try:
                self.world.work(kind)(f"round-{kind}")
            except InfrastructureError:
                self.world.ledger.abandon(f"round-{kind}")
            self.holds.check()
        self.world.ledger.sweep()
        self.holds.check()

    def _pass(self, seconds: float) -> None:
        self.world.clock.pass_seconds(seconds)
        self.world.ledger.sweep()
        self.holds.check()

    @contextlib.contextmanager
    def _of_org_only(self, org: str) -> Iterator[None]:
        """What one tenant decides touches nothing of another."""
        before = self._rows_of_others(org)
        yield
        assert before == self._rows_of_others(org), f"a decision of org {org} changed what is another's"

    def _rows_of_others(self, org: str) -> object:
        dump = self.world.dump()
        documents = {id for id, row in dump["documents"].items() if row["org"] != org}
        versions = {id for id, row in dump["versions"].items() if row["document_id"] in documents}
        return [
            {
                key: row
                for key, row in rows.items()
                if row.get("document_id") in documents or row.get("version_id") in versions
            }
            for rows in dump.values()
        ]

    def _findings(self) -> set[tuple[str, str]]:
        found = self.world.audit.find(GRACE_S)
        return {(one.kind, one.name) for one in found if not one.kind.startswith("orphan")}


@pytest.mark.timeout(0)  # a soak takes longer, and so does shrinking a failure
def test_whatever_happens_every_invariant_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at_effects(monkeypatch)
    asked = os.environ.get("PAGEGATE_MODEL_EXAMPLES")
    chosen = settings(
        max_examples=int(asked or EXAMPLES),
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=not asked,
        suppress_health_check=list(HealthCheck),
    )
    if asked:
        number = int(os.environ.get("PAGEGATE_MODEL_SEED") or random.SystemRandom().getrandbits(32))
        print(f"PAGEGATE_MODEL_SEED={number}")
        seed(number)(Model)
    run_state_machine_as_test(Model, settings=chosen)
