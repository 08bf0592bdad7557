"""The whole loop in one process, without Ray: what tests drive, and what the pools do in many."""

from __future__ import annotations

import time

from pipeline.stages import STAGES
from pipeline.wiring import GATE, INTAKE, Pipeline

KINDS = (INTAKE, *(spec.name.value for spec in STAGES), GATE)


def drain(pipeline: Pipeline, worker: str = "inline", timeout_s: float = 600.0) -> None:
    """Work until the ledger is idle: every submission has ended and nothing is to be done anew.

    Raises `TimeoutError` after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if any([step(pipeline, worker), pipeline.ledger.sweep()]):
            continue
        if pipeline.ledger.views.idle():
            return
        time.sleep(0.05)  # rows that were put off are not due yet
    raise TimeoutError(f"the ledger is not idle after {timeout_s} s: {pipeline.ledger.views.status(None)}")


def step(pipeline: Pipeline, worker: str = "inline") -> bool:
    """One window of each kind of work; whether there was any."""
    reports = [pipeline.run(kind, worker) for kind in KINDS]
    return any(report is not None for report in reports)
