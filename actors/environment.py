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


def _set(token: str) -> None:
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
