"""The folder of an embedded set-up: who is at work in it, and where its Ray is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from pathlib import Path
from typing import IO

import psutil

log = logging.getLogger("pagegate.home")


class Home:
    """One supervisor at a time works in a home. The lock dies with its process, however that ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._address_file = folder / "cluster.json"
        self._workers = folder / "workers"
        self._lock: IO[str] | None = None

    def acquire(self) -> bool:
        """Become the one at work here; False if another process is."""
        lock = (self._folder / "supervisor.lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        self._address_file.unlink(missing_ok=True)
        return True

    def enlist(self) -> None:
        """Note that this process works for the one at work here, and has no business without it."""
        self._workers.mkdir(exist_ok=True)
        (self._workers / str(os.getpid())).write_text(str(psutil.Process().create_time()))

    def kill_orphans(self) -> None:
        """Kill workers that a killed supervisor left behind: they may hold the index or a lock of the ledger.

        Ray ends them too, but one that is stuck while it exits has been seen to stay. Only for who holds the lock.
        """
        for noted in self._workers.glob("*"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(noted.name))
                if str(process.create_time()) == noted.read_text():
                    log.warning("killing process %s, which an earlier run left behind", noted.name)
                    process.kill()
                    process.wait(10)
            noted.unlink()

    def busy(self) -> bool:
        """Whether another process is at work here."""
        if not self.acquire():
            return True
        self.release()
        return False

    def announce(self, address: str, token: str) -> None:
        """Tell other commands of this user where this home's Ray is, and what opens it."""
        temporary = self._address_file.with_suffix(".new")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"address": address, "token": token}, file)
        temporary.replace(self._address_file)

    def cluster(self) -> tuple[str, str] | None:
        """Address and token of the Ray of the process at work here, if it has announced one."""
        try:
            found = json.loads(self._address_file.read_text())
        except FileNotFoundError:
            return None
        return found["address"], found["token"]

    def release(self) -> None:
        """No longer be the one at work here. Harmless when it is not."""
        if self._lock:
            self._address_file.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None
