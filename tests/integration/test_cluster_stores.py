"""The same pipeline on the stores that a cluster has: MariaDB, S3 (moto) and Qdrant (a test server over gRPC)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.domain import Submission, SubmissionState
from pipeline.inline import drain
from pipeline.metadata import DocumentMetadata
from pipeline.settings import IndexSettings, LedgerSettings, StoreSettings
from pipeline.wiring import Pipeline
from scripts.registering import Registrar
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


# Sources that were uploaded before they were registered


def submit_file(pipeline: Pipeline, path: Path) -> Submission:
    """As `pagegate submit FILE` does with a store that other nodes share."""
    registrar = Registrar(pipeline=pipeline, org=ORG, metadata=DocumentMetadata())
    (submission,) = registrar.register([str(path)])
    return submission


def ended(pipeline: Pipeline, submission: Submission) -> Submission:
    drain(pipeline)
    (found,) = pipeline.ledger.views.submissions([submission.id])
    return found


def test_an_uploaded_file_is_not_needed_any_more(pipeline: Pipeline, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "press 40.pdf", ["alpha torque"])
    submission = submit_file(pipeline, path)
    path.unlink()
    assert ended(pipeline, submission).state == SubmissionState.SEARCHABLE
    (hit,) = ask(pipeline, "alpha torque")
    assert (hit.title, hit.source) == ("press 40", path.as_uri())


def test_nothing_is_kept_of_an_uploaded_file_that_is_no_pdf(pipeline: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "page.pdf"
    path.write_text("<html>not a PDF</html>")
    submission = submit_file(pipeline, path)
    assert len(list(pipeline.store.keys())) == 1
    assert ended(pipeline, submission).error_code == "not_a_pdf"
    assert list(pipeline.store.keys()) == []


def test_an_uploaded_object_with_other_bytes_becomes_no_version(pipeline: Pipeline, tmp_path: Path) -> None:
    submission = submit_file(pipeline, write_pdf(tmp_path / "doc.pdf", ["alpha"]))
    assert submission.upload
    bucket: Any = pipeline.store
    place = {"Bucket": bucket._bucket, "Key": submission.upload.key}
    said = {"sha256": submission.upload.sha256}
    bucket._client.put_object(**place, Body=b"%" * submission.upload.size, Metadata=said)
    found = ended(pipeline, submission)
    assert (found.state, found.version_id) == (SubmissionState.FAILED, None)
    assert found.error_code == "source_changed"


def test_an_upload_that_is_gone_ends_its_submission_and_the_next_one_heals_it(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    path = write_pdf(tmp_path / "doc.pdf", ["alpha"])
    submission = submit_file(pipeline, path)
    assert submission.upload
    pipeline.store.delete(submission.upload.key)
    assert ended(pipeline, submission).error_code == "source_missing"
    assert ended(pipeline, submit_file(pipeline, path)).state == SubmissionState.SEARCHABLE


def test_a_file_over_the_limit_is_refused_and_not_uploaded(pipeline: Pipeline, tmp_path: Path) -> None:
    limits = pipeline.settings.limits.model_copy(update={"file_bytes": 100})
    pipeline.settings = pipeline.settings.model_copy(update={"limits": limits})
    submission = submit_file(pipeline, write_pdf(tmp_path / "doc.pdf", ["alpha"]))
    assert list(pipeline.store.keys()) == []
    assert ended(pipeline, submission).error_code == "file_too_large"


def test_the_same_file_again_is_neither_sent_nor_computed_again(pipeline: Pipeline, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "doc.pdf", ["alpha"])
    assert ended(pipeline, submit_file(pipeline, path)).state == SubmissionState.SEARCHABLE
    counts, keys = stage_counts(pipeline), set(pipeline.store.keys())
    assert ended(pipeline, submit_file(pipeline, path)).state == SubmissionState.SEARCHABLE
    assert (stage_counts(pipeline), set(pipeline.store.keys())) == (counts, keys)


def test_an_object_of_another_bucket_is_a_source(pipeline: Pipeline, tmp_path: Path) -> None:
    incoming = fresh_bucket()
    incoming.raw.upload_file(str(write_pdf(tmp_path / "a.pdf", ["alpha"])), incoming.name, "acme/机床 手册.pdf")
    registrar = Registrar(pipeline=pipeline, org=ORG, metadata=DocumentMetadata())
    (submission,) = registrar.register([f"s3://{incoming.name}/acme/"])
    assert ended(pipeline, submission).state == SubmissionState.SEARCHABLE
    (hit,) = ask(pipeline, "alpha")
    assert hit.title == "机床 手册"
    incoming.raw.delete_object(Bucket=incoming.name, Key="acme/机床 手册.pdf")
    (again,) = registrar.register([submission.source_uri])
    assert ended(pipeline, again).error_code == "source_missing"
