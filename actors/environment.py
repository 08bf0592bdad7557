"""What Ray reads from the environment; to be set before ray is imported for the first time."""

from __future__ import annotations

import os
import secrets


def own_ray() -> str:
    """Prepare to start a Ray of our own; returns the token that everybody who joins it must have.

    Ray answers to nobody without it. A token that is set already (as on Kubernetes) is kept.
    """
    token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
    _set(token)
    return token


def join_ray(token: str) -> None:
    """Prepare to join the Ray of another command, and to give up soon if it is no longer there.

    Ray's own patience is twenty times forty seconds.
    """
    _set(token)
    os.environ.update(
        RAY_NUM_REDIS_GET_RETRIES="1",
        RAY_gcs_rpc_server_connect_timeout_s="5",
        RAY_gcs_rpc_server_reconnect_timeout_s="5",
    )


def join_cluster() -> str:
    """Prepare to work on a cluster that somebody else started; returns the token that its environment gives us.

    Whether it wants one is theirs to say, by RAY_AUTH_MODE and RAY_AUTH_TOKEN (or a file of the latter).
    """
    _be_quiet()
    return os.environ.get("RAY_AUTH_TOKEN", "")


def _set(token: str) -> None:
    if token:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
    _be_quiet()


def _be_quiet() -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
