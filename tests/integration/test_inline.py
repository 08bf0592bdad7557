"""The whole pipeline in one process: from PDFs to pages that are found, and what must never be found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.domain import SubmissionState
from pipeline.errors import ContractMismatch, ProfileMismatch
from pipeline.inline import drain
from pipeline.settings import OcrOptions, RenderOptions, load_settings
from pipeline.wiring import Pipeline
from scripts.samples import BROKEN_PAGE, BROKEN_PAGE_FILE
from tests.pdfs import write_pdf, write_scan
from tests.pipelines import ORG, ask, ingest, open_at, snapshot, stage_counts, submit


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    opened = open_at(tmp_path / "home")
    yield opened
    opened.close()


def found(pipeline: Pipeline, question: str, org: str = ORG) -> list[tuple[str, int]]:
    return [(Path(hit.source).name, hit.page_index) for hit in ask(pipeline, question, 10, org)]


def test_pages_are_found_by_chinese_and_english_questions(pipeline: Pipeline, samples: Path) -> None:
    submissions = ingest(pipeline, *sorted(samples.glob("*.pdf")))
    assert {one.state for one in submissions} == {SubmissionState.SEARCHABLE}
    best = ask(pipeline, "新机床运行多少小时后第一次更换液压油？", 3)[0]
    assert (best.page_index, best.page_label, best.text_source) == (7, "5", "native")
    assert "300" in best.snippet
    scanned = ask(pipeline, "Which wheel run-out was measured at the acceptance test?", 3)[0]
    assert (scanned.page_index, scanned.page_label, scanned.text_source) == (11, "9", "ocr")
    assert pipeline.store.get(_image(pipeline, scanned.image_key)).startswith(b"\xff\xd8")  # a JPEG


def _image(pipeline: Pipeline, key: str) -> object:
    for version in {submission.version_id for submission in pipeline.ledger.views.submissions_of(_document(key), ORG)}:
        for page in pipeline.ledger.views.pages(version or ""):
            for stage in page.stages:
                for ref in stage.artifacts.values():
                    if ref.key == key:
                        return ref
    raise AssertionError(key)


def _document(key: str) -> str:
    return key.split("/")[0]


def test_a_search_before_anything_was_ingested_finds_nothing(pipeline: Pipeline) -> None:
    assert found(pipeline, "torque") == []


def test_a_blank_page_is_a_verdict_and_passes(pipeline: Pipeline, tmp_path: Path) -> None:
    (submission,) = ingest(pipeline, write_pdf(tmp_path / "a.pdf", ["first", "", "last"]))
    assert submission.state == SubmissionState.SEARCHABLE
    pages = pipeline.ledger.views.pages(submission.version_id or "")
    verdicts = [stage.facts["verdict"] for page in pages for stage in page.stages if stage.stage == "text"]
    assert verdicts == ["good", "blank", "good"]


def test_every_bad_input_ends_typed_and_the_others_go_on(
    pipeline: Pipeline, hostile_samples: Path, tmp_path: Path
) -> None:
    good = write_pdf(tmp_path / "good.pdf", ["a healthy page"])
    files = [*sorted(hostile_samples.iterdir()), good, tmp_path / "absent.pdf"]
    ended = {Path(one.source_uri).name: one for one in ingest(pipeline, *files)}
    assert {name: (one.state.value, one.error_code) for name, one in ended.items()} == {
        "empty.pdf": ("failed", "not_a_pdf"),
        "web-page.pdf": ("failed", "not_a_pdf"),
        "truncated.pdf": ("failed", "no_pages"),
        "encrypted.pdf": ("failed", "encrypted"),
        "broken-page.pdf": ("rejected", "page_broken"),
        "absent.pdf": ("failed", "source_missing"),
        "good.pdf": ("searchable", None),
    }
    assert (ended[BROKEN_PAGE_FILE].error_page, ended[BROKEN_PAGE_FILE].error_stage) == (BROKEN_PAGE, "render")
    assert all(one.error_message for one in ended.values() if one.error_code)
    assert found(pipeline, "healthy page") == [("good.pdf", 0)]


def test_nothing_of_a_rejected_version_is_found(pipeline: Pipeline, hostile_samples: Path) -> None:
    (submission,) = ingest(pipeline, hostile_samples / BROKEN_PAGE_FILE)
    assert stage_counts(pipeline)["index"] > 0  # its good pages have points
    assert found(pipeline, "page") == []
    build = pipeline.ledger.registry.active_build()
    assert build is not None
    assert pipeline.ledger.views.manifest(submission.version_id or "", build.id) == []


def test_the_same_command_again_does_nothing(pipeline: Pipeline, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", ["one", "two"])
    first = ingest(pipeline, path)
    before, counts = snapshot(pipeline, first), stage_counts(pipeline)
    again = ingest(pipeline, path)
    assert again[0].state == SubmissionState.SEARCHABLE
    assert (snapshot(pipeline, again), stage_counts(pipeline)) == (before, counts)


def test_versions_a_b_a_end_at_the_last_one_with_nothing_computed_again(pipeline: Pipeline, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "doc.pdf", ["alpha torque", "common"])
    content_a = path.read_bytes()
    content_b = write_pdf(tmp_path / "b.pdf", ["beta pressure", "common"]).read_bytes()
    ingest(pipeline, path)
    path.write_bytes(content_b)
    ingest(pipeline, path)
    assert found(pipeline, "beta pressure")[0] == ("doc.pdf", 0)
    assert "alpha" not in ask(pipeline, "alpha torque", 1)[0].snippet
    counts = stage_counts(pipeline)
    path.write_bytes(content_a)
    (last,) = ingest(pipeline, path)
    assert (last.state, last.revision) == (SubmissionState.SEARCHABLE, 3)
    assert "alpha" in ask(pipeline, "alpha torque", 1)[0].snippet
    assert found(pipeline, "beta pressure").count(("doc.pdf", 0)) == 1
    assert stage_counts(pipeline) == counts


def test_a_submission_delivered_late_never_becomes_current(pipeline: Pipeline, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "doc.pdf", ["beta late"])
    (late,) = submit(pipeline, [path])
    token_and_late = pipeline.ledger.submissions.claim(600, "slow")  # its intake does not come back for now
    assert token_and_late is not None
    write_pdf(path, ["gamma newest"])
    (newest,) = ingest_without_waiting_for(pipeline, path)
    write_pdf(path, ["beta late"])
    pipeline.ledger.submissions.release("slow")
    drain(pipeline)
    (late,) = pipeline.ledger.views.submissions([late.id])
    assert (late.state, late.superseded_by) == (SubmissionState.SEARCHABLE, newest.revision)
    assert "gamma" in ask(pipeline, "beta late", 1)[0].snippet


def ingest_without_waiting_for(pipeline: Pipeline, path: Path) -> list[object]:
    """As `ingest`, while another submission is held by somebody and so the ledger is never idle."""
    from pipeline.inline import step

    submissions = submit(pipeline, [path])
    while step(pipeline):
        pass
    ended = list(pipeline.ledger.views.submissions([one.id for one in submissions]))
    assert all(one.state == SubmissionState.SEARCHABLE for one in ended)
    return list(ended)


def test_the_old_pages_are_found_until_the_gate_swaps_in_those_of_a_new_resolution(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    path = write_pdf(tmp_path / "doc.pdf", ["alpha torque", "beta pressure"])
    submissions = ingest(pipeline, path)
    before, counts = snapshot(pipeline, submissions), stage_counts(pipeline)
    home = pipeline.settings.home
    pipeline.close()

    other = RenderOptions(dpi=100)
    with pytest.raises(ProfileMismatch, match=r"render\.dpi: 150 → 100.*profile --adopt"):
        open_at(home, render=other)
    changed = Pipeline(load_settings(home=home, render=other))
    changed.prepare()
    changed.ledger.registry.adopt(changed.options())
    changed.ledger.sweep()
    for kind in ("render", "text", "encode", "index"):
        while changed.run(kind, "w"):
            assert found(changed, "alpha torque")[0] == ("doc.pdf", 0)
        assert snapshot(changed, submissions)["manifests"] == before["manifests"]
    drain(changed)
    after = snapshot(changed, submissions)["manifests"]
    assert stage_counts(changed) == {stage: 2 * count for stage, count in counts.items()}
    (old,), (new,) = before["manifests"].values(), after.values()
    assert all(page[1] != was[1] and page[2] != was[2] for page, was in zip(new, old, strict=True))
    assert found(changed, "alpha torque")[0] == ("doc.pdf", 0)
    changed.close()


@pytest.mark.parametrize(
    ("min_confidence", "follows"),
    [
        (0.4, False),  # the same lines pass, the text stays the same, and nothing follows from it
        (1.0, True),  # no line passes
    ],
)
def test_a_changed_ocr_option_redoes_only_the_pages_that_ocr_read(
    pipeline: Pipeline, tmp_path: Path, min_confidence: float, follows: bool
) -> None:
    native = write_pdf(tmp_path / "native.pdf", ["alpha torque"])
    scan = write_scan(tmp_path / "scan.pdf", ["serial number HX-4711", "year of make 2019"])
    ingest(pipeline, native, scan)
    counts = stage_counts(pipeline)
    assert counts == {"render": 2, "text": 2, "ocr": 1, "encode": 2, "index": 2}
    assert found(pipeline, "serial number HX-4711")[0] == ("scan.pdf", 0)
    home = pipeline.settings.home
    pipeline.close()
    changed = Pipeline(load_settings(home=home, ocr=OcrOptions(min_confidence=min_confidence)))
    changed.prepare()
    changed.ledger.registry.adopt(changed.options())
    drain(changed)
    assert stage_counts(changed) == counts | {"ocr": 2, "encode": 2 + follows, "index": 2 + follows}
    changed.close()


def test_a_page_with_ink_in_which_ocr_finds_nothing_is_unreadable_and_the_gate_says_so(tmp_path: Path) -> None:
    pipeline = open_at(tmp_path / "home", ocr=OcrOptions(min_confidence=1.0))
    (submission,) = ingest(pipeline, write_scan(tmp_path / "scan.pdf", ["serial number HX-4711"]))
    assert submission.state == SubmissionState.SEARCHABLE
    version = pipeline.ledger.views.version(submission.version_id or "", ORG)
    assert version is not None
    (gate,) = version.gates.values()
    assert gate["report"]["verdicts"] == {"unreadable": 1}
    pipeline.close()


def test_an_encoder_that_differs_from_the_active_build_is_refused(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from pipeline.engines.lexical import LexicalEncoder

    other = dataclasses.replace(LexicalEncoder().contract, version=2)
    home = pipeline.settings.home
    pipeline.close()
    changed = Pipeline(load_settings(home=home))
    monkeypatch.setattr(changed.encoder, "contract", other)
    with pytest.raises(ContractMismatch, match=r"encoder\.version: 1 → 2.*re-index"):
        changed.open()


def test_the_same_bytes_in_two_orgs_are_two_documents_and_share_nothing(pipeline: Pipeline, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "doc.pdf", ["alpha torque"])
    ingest(pipeline, path, org="acme")
    ingest(pipeline, path, org="other")
    for org in ("acme", "other"):
        hits = ask(pipeline, "alpha torque", 10, org)
        assert len(hits) == 1
    ours, theirs = (ask(pipeline, "alpha torque", 1, org)[0] for org in ("acme", "other"))
    assert ours.document_id != theirs.document_id
    assert ours.image_key.split("/")[0] != theirs.image_key.split("/")[0]
    assert ask(pipeline, "alpha torque", 10, "third") == []


@pytest.mark.parametrize("role", ["image", "text", "evidence", "vectors"])
def test_an_artifact_lost_before_the_gate_is_made_again(pipeline: Pipeline, tmp_path: Path, role: str) -> None:
    """Whoever needs it finds it gone: a later stage or the gate. Nothing is served before it is back."""
    submissions = submit(pipeline, [write_pdf(tmp_path / "doc.pdf", ["alpha", "beta", "gamma"])])
    pipeline.run("intake", "w")
    stages = ["render"] if role == "evidence" else ["render", "text", "encode"]
    stages += ["index"] if role in ("image", "text") else []
    for stage in stages:
        pipeline.run(stage, "w")
    lost = next(key for key in pipeline.store.keys() if f"/00001/{role}/" in key)
    (pipeline.settings.home / "objects" / lost).write_bytes(b"damaged")
    drain(pipeline)
    (submission,) = pipeline.ledger.views.submissions([submissions[0].id])
    assert submission.state == SubmissionState.SEARCHABLE
    assert len(found(pipeline, "beta")) >= 1
    assert pipeline.store.get(_image(pipeline, lost))


def test_points_lost_before_the_gate_are_written_again(pipeline: Pipeline, tmp_path: Path) -> None:
    submit(pipeline, [write_pdf(tmp_path / "doc.pdf", ["alpha", "beta", "gamma"])])
    for kind in ("intake", "render", "text", "encode", "index"):
        pipeline.run(kind, "w")
    build = pipeline.ledger.registry.active_build()
    assert build is not None
    pipeline.index.delete(build.collection, list(pipeline.index.point_ids(build.collection))[:2])
    drain(pipeline)
    assert len(list(pipeline.index.point_ids(build.collection))) == 3
    assert sorted(page for _, page in found(pipeline, "alpha beta gamma")) == [0, 1, 2]


def test_a_source_that_changes_while_it_is_read_is_never_mixed(pipeline: Pipeline, tmp_path: Path) -> None:
    """The digest is taken first; what is copied then must have it."""
    path = write_pdf(tmp_path / "doc.pdf", ["alpha"])
    other = write_pdf(tmp_path / "other.pdf", ["beta"]).read_bytes()
    inspect = pipeline.reader.inspect

    def inspect_while_it_changes(source: Path) -> object:
        info = inspect(source)
        path.write_bytes(other)
        return info

    pipeline.reader.inspect = inspect_while_it_changes  # type: ignore[method-assign, assignment]
    (submission,) = ingest(pipeline, path)
    assert (submission.state, submission.error_code) == (SubmissionState.FAILED, "source_changed")


def test_a_file_name_is_only_metadata(pipeline: Pipeline, tmp_path: Path) -> None:
    odd = tmp_path / "a b\n液压 ☃ ..pdf"
    (submission,) = ingest(pipeline, write_pdf(odd, ["alpha torque"]))
    assert submission.state == SubmissionState.SEARCHABLE
    assert all(key.isascii() and " " not in key and ".." not in key for key in pipeline.store.keys())
