"""The same pipeline on the stores that a cluster has: MariaDB, S3 (moto) and Qdrant (a test server over gRPC)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from pipeline.domain import SubmissionState
from pipeline.settings import IndexSettings, LedgerSettings, StoreSettings
from pipeline.wiring import Pipeline
from tests.pdfs import write_pdf, write_scan
from tests.pipelines import ORG, ask, ingest, open_at, snapshot, stage_counts
from tests.qdrant_server import QdrantServer
from tests.s3_server import fresh_bucket

pytestmark = pytest.mark.mariadb


@pytest.fixture
def pipeline(mysql_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    server, bucket = QdrantServer(), fresh_bucket()
    opened = open_at(
        tmp_path / "home",
        ledger=LedgerSettings(url=SecretStr(mysql_url)),
        store=StoreSettings(kind="s3", s3=bucket.options),
        index=IndexSettings(kind="qdrant", qdrant=server.options()),
    )
    yield opened
    opened.close()
    server.stop()


def found(pipeline: Pipeline, question: str, org: str = ORG) -> list[tuple[str, int]]:
    return [(Path(hit.source).name, hit.page_index) for hit in ask(pipeline, question, 10, org)]


def test_documents_become_searchable_and_are_not_done_twice(pipeline: Pipeline, tmp_path: Path) -> None:
    native = write_pdf(tmp_path / "native.pdf", ["alpha torque", "", "beta pressure"])
    scan = write_scan(tmp_path / "scan.pdf", ["serial number HX-4711"])
    submissions = ingest(pipeline, native, scan)
    assert [one.state for one in submissions] == [SubmissionState.SEARCHABLE] * 2
    assert found(pipeline, "alpha torque")[0] == ("native.pdf", 0)
    assert found(pipeline, "serial number HX-4711")[0] == ("scan.pdf", 0)
    assert found(pipeline, "alpha torque", org="other") == []
    before, counts = snapshot(pipeline, submissions), stage_counts(pipeline)
    again = ingest(pipeline, native, scan)
    assert (snapshot(pipeline, again), stage_counts(pipeline)) == (before, counts)


def test_versions_a_b_a_end_at_the_last_one(pipeline: Pipeline, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "doc.pdf", ["alpha torque"])
    first = path.read_bytes()
    ingest(pipeline, path)
    write_pdf(path, ["beta pressure"])
    ingest(pipeline, path)
    assert "beta" in ask(pipeline, "beta pressure", 1)[0].snippet
    counts = stage_counts(pipeline)
    path.write_bytes(first)
    (last,) = ingest(pipeline, path)
    assert (last.state, last.revision) == (SubmissionState.SEARCHABLE, 3)
    assert "alpha" in ask(pipeline, "alpha torque", 1)[0].snippet
    assert stage_counts(pipeline) == counts


def test_a_source_that_the_store_lost_is_put_again_when_it_is_submitted_again(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    path = write_pdf(tmp_path / "doc.pdf", ["alpha torque"])
    ingest(pipeline, path)
    (source,) = (key for key in pipeline.store.keys() if "/source/" in key)
    pipeline.store.delete(source)
    ingest(pipeline, path)
    assert source in set(pipeline.store.keys())


def test_what_the_stores_lost_before_the_gate_is_made_again(pipeline: Pipeline, tmp_path: Path) -> None:
    from pipeline.inline import drain
    from tests.pipelines import submit

    (submission,) = submit(pipeline, [write_pdf(tmp_path / "doc.pdf", ["alpha", "beta", "gamma"])])
    for kind in ("intake", "render", "text", "encode", "index"):
        pipeline.run(kind, "w")
    build = pipeline.ledger.registry.active_build()
    assert build is not None
    pipeline.index.delete(build.collection, list(pipeline.index.point_ids(build.collection))[:1])
    pipeline.store.delete(next(key for key in pipeline.store.keys() if "/00002/image/" in key))
    drain(pipeline)
    (ended,) = pipeline.ledger.views.submissions([submission.id])
    assert ended.state == SubmissionState.SEARCHABLE
    assert stage_counts(pipeline) == {"render": 3, "text": 3, "encode": 3, "index": 3}
    assert sorted(page for _, page in found(pipeline, "alpha beta gamma")) == [0, 1, 2]
