"""The actors of one kind of resource: made, called one window at a time, replaced when they die."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorAlreadyExistsError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster import INDEX_OWNER
from actors.stage_actor import StageActor
from pipeline.settings import PoolSettings

NAME_S = 0.5
"""How long to wait before asking for a dead actor's name again."""
DEATHS_IN_A_ROW = 5
"""A pool whose actors die this often without finishing one window has a fault of its own."""


@dataclasses.dataclass(slots=True)
class Member:
    """One actor, and the call it is at work on."""

    worker: str
    handle: Any
    call: Any = None
    called_at: float = 0.0


class ActorPool:
    """`name` is a field of `pipeline.settings.Pools`; its one actor is the `owner` of the embedded index."""

    def __init__(
        self, name: str, settings: PoolSettings, config: Path | None, home: Path, *, owner: bool = False
    ) -> None:
        self.name = name
        self._settings = settings
        self._config = config
        self._home = home
        self.owner = owner
        self._members: list[Member] = []
        self.deaths = 0
        self._not_before = 0.0

    def start(self) -> None:
        """Bring the pool to its size, as far as Ray lets it now; returns before the actors are up."""
        while len(self._members) < self._settings.size and time.monotonic() >= self._not_before:
            try:
                self._members.append(self._make())
            except ActorAlreadyExistsError:  # Ray has not yet forgotten the name of the owner that died
                self._not_before = time.monotonic() + NAME_S

    def idle(self) -> Iterator[Member]:
        return (member for member in self._members if member.call is None)

    def call(self, member: Member) -> Any:
        """Have an idle member do one window; returns the reference of its report."""
        member.call = member.handle.work.remote()
        member.called_at = time.monotonic()
        return member.call

    def member_at(self, call: Any) -> Member | None:
        return next((member for member in self._members if member.call == call), None)

    def kill_hung(self) -> None:
        """Kill actors whose call outlasts every lease that its window can have; they then count as dead."""
        longest_s = self._settings.window * self._settings.lease_s
        for member in self._members:
            if member.call is not None and time.monotonic() - member.called_at > longest_s:
                ray.kill(member.handle)

    def bury(self, member: Member) -> None:
        """Forget a dead actor; its place is filled after a moment that grows with the deaths in a row."""
        self._members.remove(member)
        self.deaths += 1
        self._not_before = time.monotonic() + min(30.0, 0.5 * 2**self.deaths)

    def stop(self, grace_s: float) -> list[str]:
        """Let every actor finish its window and flush, for at most `grace_s`; returns all workers' names."""
        stopping = [member.handle.stop.remote() for member in self._members]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=grace_s)
        for member in self._members:
            ray.kill(member.handle)
        return [member.worker for member in self._members]

    def _make(self) -> Member:
        worker = f"{self.name}-{uuid.uuid4().hex[:12]}"
        options: dict[str, Any] = {"num_cpus": self._settings.cpus, "max_restarts": 0, "max_task_retries": 0}
        if self.owner:  # other commands find the embedded index by its owner, whose folder is on this node
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            options |= {"name": INDEX_OWNER, "scheduling_strategy": here}
        actor: Any = StageActor  # ray's decorator adds what the class itself does not have
        handle = actor.options(**options).remote(self.name, worker, self._config, self._home)
        return Member(worker=worker, handle=handle)
