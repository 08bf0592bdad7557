"""A pool's size after deaths, without Ray running."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.exceptions import ActorAlreadyExistsError

from actors import pool
from actors.pool import ActorPool, Member
from pipeline.settings import PoolSettings


def test_an_owner_whose_name_ray_has_not_yet_forgotten_is_replaced_a_moment_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[object] = [ActorAlreadyExistsError("index-owner is taken"), "handle"]

    def make(self: ActorPool) -> Member:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Member(worker="index-2", handle=answer)

    now = [100.0]
    monkeypatch.setattr(ActorPool, "_make", make)
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])
    owners = ActorPool("index", PoolSettings(), None, Path("home"))
    owners.start()
    owners.start()
    assert list(owners.idle()) == []
    assert len(answers) == 1  # not asked again at once
    now[0] += pool.NAME_S
    owners.start()
    assert [member.worker for member in owners.idle()] == ["index-2"]
