"""Ray itself: started on this machine for one command, or found where another command started it."""

from __future__ import annotations

import math
import os
from typing import Any

import ray
from ray.exceptions import RayError

from actors.home import Home
from pipeline.domain import IndexQuery
from pipeline.errors import RayUnavailable
from pipeline.settings import Pools

NAMESPACE = "pagegate"
INDEX_OWNER = "index-owner"
OBJECT_STORE_BYTES = 128 * 1024**2
"""Keys travel between actors, not pixels: Ray's own store stays nearly empty."""

QUIET: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}


def start_local(pools: Pools, home: Home) -> None:
    """Start Ray on this machine, large enough for the pools, and announce it in `home`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
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
    home.announce(context.address_info["gcs_address"])


def connect(address: str) -> None:
    """Join the Ray at `address`. Raises `RayUnavailable`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address, namespace=NAMESPACE, **QUIET)
    except (RayError, OSError, RuntimeError, ConnectionError) as error:
        raise RayUnavailable(f"no Ray answers at {address}: is the supervisor still running?") from error


class RemoteIndex:
    """The index as another command's owner actor answers for it."""

    def __init__(self) -> None:
        """Raises `RayUnavailable` if nobody owns the index in the Ray that this process is connected to."""
        try:
            self._owner = ray.get_actor(INDEX_OWNER, namespace=NAMESPACE)
        except ValueError as error:
            raise RayUnavailable("no actor owns the index yet: try again in a moment") from error

    def search(self, collection: str, query: IndexQuery, limit: int) -> Any:
        return self._call("search", collection, query, limit)

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments: self._call(method, *arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return ray.get(self._owner.call_index.remote(method, arguments))
        except RayError as error:
            raise RayUnavailable(f"the owner of the index did not answer: {error}") from error
