"""What follows from what is done."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from pipeline.advance import Step, TaskRow, plan_page, prove_page
from pipeline.domain import ArtifactRef, BuildState, EncoderContract, IndexBuild, Profile, StageName, TaskState

ABOUT = {"title": "A manual", "labels": ["a"]}
SOURCE = ArtifactRef(key="source", sha256="0" * 64, size=1)
Rows = dict[tuple[StageName, str], TaskRow]


def build(name: str = "b1", reads: str = "text") -> IndexBuild:
    contract = EncoderContract(name="lexical", version=1, dim=4, reads=reads, options={})
    return IndexBuild(
        id=name, collection=name, contract=contract, contract_digest=f"digest-{name}", state=BuildState.ACTIVE
    )


def profile(**changes: dict[str, object]) -> Profile:
    options = {stage.value: {"version": 1, **changes.get(stage.value, {})} for stage in StageName}
    return Profile(revision=1, options=options, digest="d")


def plan(rows: Rows, builds: list[IndexBuild] | None = None, **changes: dict[str, object]) -> list[Step]:
    return plan_page(SOURCE, ABOUT, rows, profile(**changes), builds or [build()])


def finish(step: Step, rows: Rows, *, needs_ocr: bool = False, state: TaskState = TaskState.DONE) -> None:
    made = ArtifactRef(key=step.fingerprint, sha256=step.fingerprint, size=1)
    outputs = dict.fromkeys(("image", "evidence", "text", "vectors"), made)
    facts = {"needs_ocr": needs_ocr and step.stage == StageName.TEXT, "verdict": "good", "n_tokens": 3}
    rows[step.stage, step.fingerprint] = TaskRow(id=len(rows) + 1, state=state, outputs=outputs, facts=facts)


def finish_all(rows: Rows, builds: list[IndexBuild] | None = None, *, needs_ocr: bool = False) -> list[StageName]:
    """Do whatever the plan asks for until it asks for nothing more; returns the stages in the order done."""
    order = []
    while missing := [step for step in plan(rows, builds) if step.row is None]:
        finish(missing[0], rows, needs_ocr=needs_ocr)
        order.append(missing[0].stage)
    return order


def test_a_new_page_is_rendered_first() -> None:
    assert [step.stage for step in plan({})] == [StageName.RENDER]


def test_a_page_with_good_text_is_not_read_by_ocr() -> None:
    assert finish_all({}) == ["render", "text", "encode", "index"]


def test_a_page_without_good_text_is_encoded_from_what_ocr_read() -> None:
    rows: Rows = {}
    assert finish_all(rows, needs_ocr=True) == ["render", "text", "ocr", "encode", "index"]
    ocr, encode = (next(s for s in plan(rows) if s.stage == stage) for stage in (StageName.OCR, StageName.ENCODE))
    assert encode.recipe["inputs"]["text"]["sha256"] == ocr.fingerprint


def test_an_encoder_that_reads_the_image_does_not_wait_for_the_text() -> None:
    rows: Rows = {}
    finish(plan(rows)[0], rows)
    assert [step.stage for step in plan(rows, [build(reads="image")])] == ["render", "text", "encode"]


def test_index_waits_for_both_the_vectors_and_the_final_text() -> None:
    rows: Rows = {}
    builds = [build(reads="image")]
    finish(plan(rows, builds)[0], rows)
    encode = next(step for step in plan(rows, builds) if step.stage == StageName.ENCODE)
    finish(encode, rows)
    assert StageName.INDEX not in [step.stage for step in plan(rows, builds)]
    text = next(step for step in plan(rows, builds) if step.stage == StageName.TEXT)
    finish(text, rows)
    assert StageName.INDEX in [step.stage for step in plan(rows, builds)]


def test_each_live_build_gets_rows_of_its_own_and_shares_the_rest() -> None:
    order = finish_all({}, [build("b1"), build("b2")])
    assert sorted(order) == sorted(["render", "text", "encode", "encode", "index", "index"])


def test_a_changed_render_option_redoes_everything_after_it() -> None:
    rows: Rows = {}
    finish_all(rows)
    assert [step.stage for step in plan(rows, render={"dpi": 200}) if step.row is None] == ["render"]


def test_a_changed_ocr_option_concerns_only_pages_that_ocr_read() -> None:
    native: Rows = {}
    finish_all(native)
    assert all(step.row for step in plan(native, ocr={"engine": "other"}))
    scanned: Rows = {}
    finish_all(scanned, needs_ocr=True)
    assert [step.stage for step in plan(scanned, ocr={"engine": "other"}) if step.row is None] == ["ocr"]


def test_a_failed_row_ends_the_chain_and_is_the_pages_failure() -> None:
    rows: Rows = {}
    finish(plan(rows)[0], rows, state=TaskState.FAILED)
    steps = plan(rows)
    proof = prove_page("v", 7, "vii", steps, build())
    assert [step.stage for step in steps] == ["render"]
    assert proof is not None
    assert proof.failure is not None
    assert (proof.failure.page_index, proof.failure.stage) == (7, "render")


def test_a_page_is_proved_only_when_nothing_is_left_to_do() -> None:
    rows: Rows = {}
    while missing := [step for step in plan(rows) if step.row is None]:
        assert prove_page("v", 0, "", plan(rows), build()) is None
        finish(missing[0], rows)
    proof = prove_page("v", 0, "", plan(rows), build())
    assert proof is not None
    assert set(proof.artifacts) == {"image", "text"}
    assert proof.n_tokens == 3


def test_a_leased_row_leaves_the_page_unproved() -> None:
    rows: Rows = {}
    finish_all(rows)
    key = next(key for key in rows if key[0] == StageName.INDEX)
    rows[key] = dataclasses.replace(rows[key], state=TaskState.LEASED)
    assert prove_page("v", 0, "", plan(rows), build()) is None


@given(st.permutations(range(3)), st.booleans())
def test_the_order_of_the_rows_does_not_matter(order: list[int], needs_ocr: bool) -> None:
    """Whatever is done first, the same rows exist in the end."""
    rows: Rows = {}
    builds = [build("b1", "image"), build("b2", "text")]
    turn = 0
    while missing := [step for step in plan(rows, builds) if step.row is None]:
        finish(missing[order[turn % 3] % len(missing)], rows, needs_ocr=needs_ocr)
        turn += 1
    expected: Rows = {}
    finish_all(expected, builds, needs_ocr=needs_ocr)
    assert rows.keys() == expected.keys()
