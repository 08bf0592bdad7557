"""Ray itself: started on this machine for one command, or found where another command started it."""

from __future__ import annotations

import math
import os
import socket
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from actors.home import Home
from pipeline.domain import IndexQuery
from pipeline.errors import PagegateError, RayUnavailable
from pipeline.settings import Pools

NAMESPACE = "pagegate"
INDEX_OWNER = "index-owner"
OBJECT_STORE_BYTES = 128 * 1024**2
"""Keys travel between actors, not pixels: Ray's own store stays nearly empty."""

CONNECT_S = 5.0
ANSWER_S = 60.0
"""How long the index's owner may take, which answers between two windows."""

QUIET: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}


def start_local(pools: Pools, home: Home, token: str) -> None:
    """Start Ray on this machine, large enough for the pools, and announce it in `home`.

    `token` is that of `actors.environment.own_ray`. Raises `RayUnavailable`.
    """
    sizes = [getattr(pools, name) for name in type(pools).model_fields]
    needed = math.ceil(sum(pool.size * pool.cpus for pool in sizes))
    try:
        context: Any = ray.init(
            address="local",  # never somebody else's Ray that happens to run here
            num_cpus=max(os.cpu_count() or 1, needed),
            object_store_memory=OBJECT_STORE_BYTES,
            namespace=NAMESPACE,
            **QUIET,
        )
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise RayUnavailable(f"Ray could not be started on this machine: {error}") from error
    home.announce(context.address_info["gcs_address"], token)


def join(address: str, home: Home, token: str) -> None:
    """Work on the cluster at `address`, and announce it in `home`. Raises `RayUnavailable`."""
    _connect(address, f"no Ray cluster answers at ray.address {address}")
    home.announce(address, token)


def connect(address: str) -> None:
    """Join the Ray at `address`, for which `actors.environment.join_ray` has prepared. Raises `RayUnavailable`."""
    _connect(address, f"the process at work here has no Ray at {address} (any more)")


def _connect(address: str, otherwise: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        ray.init(address=address, namespace=NAMESPACE, **QUIET)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise RayUnavailable(f"{otherwise}: {error}") from error


class RemoteIndex:
    """The index as another command's owner actor answers for it."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def search(self, collection: str, query: IndexQuery, limit: int) -> Any:
        return self._call("search", collection, query, limit)

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments: self._call(method, *arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return ray.get(self._owner.call_index.remote(method, arguments), timeout=ANSWER_S)
        except RayTaskError as error:
            if isinstance(error.cause, PagegateError):
                raise error.cause from error
            raise
        except RayError as error:
            raise RayUnavailable(f"the owner of the index did not answer: {error}") from error


def find_index() -> RemoteIndex | None:
    """The index through its owner in the Ray that this process has joined; None if nobody owns it yet."""
    try:
        return RemoteIndex(ray.get_actor(INDEX_OWNER, namespace=NAMESPACE))
    except ValueError:
        return None
