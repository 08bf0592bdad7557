"""What the broker carries: read strictly, written for others to read."""

from __future__ import annotations

import dataclasses
import datetime
import json
import uuid
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.domain import Event, EventKind, Message, Submission, SubmissionState
from pipeline.errors import MalformedMessage
from pipeline.identity import notification_id
from pipeline.messages import (
    BODY_BYTES,
    CompletionMessage,
    Registration,
    SubmissionMessage,
    message_of,
    registrations,
)
from pipeline.metadata import DocumentMetadata
from pipeline.stores.rabbitmq_options import NotificationRule

ID = "0e5bd6b0-6d3c-4f3e-8f0e-0f4a3f9c6d11"
DOCUMENT = "719d7fa9-117f-50de-a896-3b0911cf164e"
VERSION = "6d61359f-973c-5556-9d14-9a04660f2e6c"
METADATA = DocumentMetadata(type="manual", effective=datetime.date(2026, 1, 1), labels=("kb", "中文"))
RULES = (
    NotificationRule(bucket="inbox", org="acme"),
    NotificationRule(bucket="inbox", prefix="globex/", org="globex"),
    NotificationRule(bucket="narrow", prefix="in/", org="acme"),
)
SECRET = "s3cr3t-value"


def a_submission(**changes: Any) -> Submission:
    submission = Submission(
        id=ID,
        document_id=DOCUMENT,
        org="acme",
        source_uri="s3://inbox/a.pdf",
        revision=2,
        metadata=METADATA,
        state=SubmissionState.QUEUED,
    )
    return dataclasses.replace(submission, **changes)


def an_event(kind: EventKind, **changes: Any) -> Event:
    return Event(id=7, kind=kind, submission=a_submission(**changes), micros=1_800_000_000_000_001)


def asking(**changes: Any) -> dict[str, Any]:
    return {
        "schema": "pagegate.submission/1",
        "submission_id": ID,
        "org": "acme",
        "source": "s3://inbox/a.pdf",
    } | changes


def notifying(
    key: str = "a.pdf", bucket: str = "inbox", event: str = "ObjectCreated:Put", **object: Any
) -> dict[str, Any]:
    made = {"key": key, "size": 9, "eTag": "e1", "sequencer": "0A", **object}
    return {"eventVersion": "2.1", "eventName": event, "s3": {"bucket": {"name": bucket}, "object": made}}


def read(content: Any) -> list[Registration]:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return registrations(Message(topic="s3.put", id="", body=body), RULES)


def refusal(content: Any) -> tuple[str, str]:
    with pytest.raises(MalformedMessage) as caught:
        read(content)
    return caught.value.context["reason"], caught.value.message


# Ours


def test_a_registered_event_is_the_message_that_would_register_it() -> None:
    message = message_of(an_event(EventKind.REGISTERED))

    assert message.topic == "submission.registered"
    assert registrations(message, ()) == [
        Registration(submission_id=ID, org="acme", source_uri="s3://inbox/a.pdf", metadata=METADATA)
    ]
    assert SubmissionMessage.model_validate_json(message.body).metadata == METADATA


def test_an_event_has_the_same_id_each_time_and_another_one_when_it_happens_again() -> None:
    event = an_event(EventKind.FAILED)

    assert message_of(event) == message_of(dataclasses.replace(event))
    assert message_of(event).id != message_of(dataclasses.replace(event, micros=event.micros + 1)).id
    assert message_of(event).id != message_of(dataclasses.replace(event, kind=EventKind.REJECTED)).id


def test_a_completion_tells_what_became_of_a_submission() -> None:
    failed = an_event(
        EventKind.REJECTED,
        state=SubmissionState.REJECTED,
        version_id=VERSION,
        error_code="page_broken",
        error_message="page 3 cannot be read",
        error_stage="render",
        error_page=3,
    )

    message = message_of(failed)

    assert message.topic == "submission.rejected"
    assert json.loads(message.body) == {
        "schema": "pagegate.completion/1",
        "event": "submission.rejected",
        "submission_id": ID,
        "document_id": DOCUMENT,
        "version_id": VERSION,
        "org": "acme",
        "source": "s3://inbox/a.pdf",
        "revision": 2,
        "state": "rejected",
        "error": {"code": "page_broken", "message": "page 3 cannot be read", "stage": "render", "page_index": 3},
        "occurred_at": "2027-01-15T08:00:00.000001Z",
    }
    assert CompletionMessage.model_validate_json(message.body).error is not None


def test_a_completion_without_error_or_version_says_null() -> None:
    body = json.loads(message_of(an_event(EventKind.SEARCHABLE, state=SubmissionState.SEARCHABLE)).body)

    assert (body["error"], body["version_id"]) == (None, None)


def test_whole_seconds_have_their_six_digits_too() -> None:
    event = dataclasses.replace(an_event(EventKind.FAILED), micros=0)

    assert json.loads(message_of(event).body)["occurred_at"] == "1970-01-01T00:00:00.000000Z"


def test_metadata_may_be_left_out() -> None:
    assert read(asking())[0].metadata == DocumentMetadata()


def test_an_id_has_one_form() -> None:
    assert read(asking(submission_id=ID.upper()))[0].submission_id == ID


@pytest.mark.parametrize(
    ("source", "canonical"),
    [
        ("s3://inbox/a b.pdf", "s3://inbox/a%20b.pdf"),
        ("s3://inbox/a%20b.pdf", "s3://inbox/a%20b.pdf"),
        ("s3://inbox/手册.pdf", "s3://inbox/%E6%89%8B%E5%86%8C.pdf"),
        ("s3://inbox/%2e%2E/a+b.pdf", "s3://inbox/../a%2Bb.pdf"),
        ("file:///data/a%0Ab.pdf", "file:///data/a%0Ab.pdf"),
    ],
)
def test_a_source_has_one_form_however_it_is_quoted(source: str, canonical: str) -> None:
    assert read(asking(source=source))[0].source_uri == canonical


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"submission_id": SECRET}, "submission_id"),
        ({"submission_id": 7}, "submission_id"),
        ({"org": ""}, "org"),
        ({"org": SECRET * 40}, "org"),
        ({"org": f"{SECRET}\n"}, "org"),
        ({"org": None}, "org"),
        ({"source": f"https://{SECRET}/a.pdf"}, "source"),
        ({"source": f"s3://{SECRET}"}, "source"),
        ({"source": f"s3://{SECRET}/"}, "source"),
        ({"source": f"s3:///{SECRET}"}, "source"),
        ({"source": f"s3://inbox/{SECRET}\n"}, "source"),
        ({"source": f"s3://inbox/{SECRET}%ff"}, "source"),
        ({"source": "s3://inbox/" + "a" * 20_000}, "source"),
        ({"source": "s3://inbox/\ud800"}, "source"),
        ({"metadata": {"published": SECRET}}, "metadata.published"),
        ({"metadata": {"effective": "2026-02-01", "expired": "2026-01-01"}}, "metadata"),
        ({"metadata": {"labels": [f"{SECRET} "]}}, "metadata.labels"),
        ({"metadata": {"author": SECRET}}, "metadata.author"),
        ({"priority": SECRET}, "priority"),
        ({"\ud800": SECRET}, "body"),
    ],
)
def test_a_field_that_is_wrong_is_named_and_its_value_is_not(change: dict[str, Any], field: str) -> None:
    reason, detail = refusal(asking(**change))

    assert reason == "invalid"
    assert detail.startswith(f"{field}:")
    assert SECRET not in detail
    detail.encode()


def test_a_field_that_is_missing_is_named() -> None:
    content = asking()
    del content["org"]

    assert refusal(content) == ("invalid", "org: missing")


@pytest.mark.parametrize(
    "content",
    [
        asking(schema="pagegate.submission/2"),
        asking(schema=["pagegate.submission/1"]),
        {},
        [],
        None,
        7,
        "text",
        [asking()],
        {"Event": "s3:Other"},
        {"Type": "Notification", "Message": "{}"},
    ],
)
def test_what_is_neither_ours_nor_a_notification_is_of_an_unknown_schema(content: Any) -> None:
    assert refusal(content)[0] == "unknown_schema"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b"[" + b"9" * 5_000 + b"]",
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_not_json_in_utf8_is_refused(body: bytes) -> None:
    assert refusal(body)[0] == "not_json"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"Records":' * 50_000,
        b'{"schema": "pagegate.submission/1", "org": "acme", "org": "globex"}',
        b" " * (BODY_BYTES + 1),
    ],
    ids=["arrays", "objects", "doubled key", "too long"],
)
def test_json_that_could_be_read_in_two_ways_or_is_too_much_is_invalid(body: bytes) -> None:
    assert refusal(body)[0] == "invalid"


# S3 notifications


def test_an_object_that_was_created_becomes_a_submission() -> None:
    assert read({"Records": [notifying("manuals/a.pdf")]}) == [
        Registration(
            submission_id=notification_id("inbox", "manuals/a.pdf", "", "0A", "e1"),
            org="acme",
            source_uri="s3://inbox/manuals/a.pdf",
            metadata=DocumentMetadata(),
        )
    ]


def test_minio_names_the_event_and_the_key_again_outside() -> None:
    record = notifying("manuals%2Fa+b.pdf", event="s3:ObjectCreated:CompleteMultipartUpload", versionId="v1")
    content = {
        "EventName": "s3:ObjectCreated:CompleteMultipartUpload",
        "Key": "inbox/manuals/a b.pdf",
        "Records": [record],
    }

    assert read(content)[0].source_uri == "s3://inbox/manuals/a%20b.pdf"


@pytest.mark.parametrize(
    "key",
    [
        "a+b.pdf",
        "a b.pdf",
        "100%.pdf",
        "../../etc/passwd",
        "a\nb.pdf",
        "手册/第1章.pdf",
        "📄.pdf",
        "a?b#c.pdf",
        "/a",
        "e\u0301.pdf",
    ],
)
def test_any_name_of_an_object_is_fine(key: str) -> None:
    asked = read({"Records": [notifying(quote_plus(key))]})

    assert asked[0].submission_id == notification_id("inbox", key, "", "0A", "e1")
    assert asked[0].source_uri.isascii()
    assert asked[0].source_uri.isprintable()
    assert read(asking(source=asked[0].source_uri))[0].source_uri == asked[0].source_uri


def test_the_id_of_a_notification_never_changes() -> None:
    assert notification_id("inbox", "手册.pdf", "v1", "0A", "e1") == "b2b03ce0-532b-59a2-9418-81c83efce44b"


def test_a_notification_told_twice_is_one_submission_and_a_new_content_another() -> None:
    def submission(**object: str) -> str:
        return read({"Records": [notifying(**object)]})[0].submission_id

    ids = {
        submission(),
        submission(sequencer="0B"),
        submission(eTag="e2"),
        submission(versionId="v2"),
        submission(key="b"),
    }
    assert submission() == submission()
    assert len(ids) == 5


@pytest.mark.parametrize(
    "content",
    [
        {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-01-01T00:00:00Z", "Bucket": "any"},
        {"Records": []},
        {"Records": [notifying(event="ObjectRemoved:Delete", bucket="elsewhere")]},
        {"Records": [notifying(event="s3:ObjectAccessed:Get")]},
        {"Records": [{"eventName": "s3:Replication:OperationFailedReplication"}]},
        {"Records": [notifying("manuals/")]},
    ],
    ids=["test", "none", "removed", "read", "replication", "folder"],
)
def test_a_notification_of_anything_else_asks_for_nothing(content: Any) -> None:
    assert read(content) == []


@pytest.mark.parametrize(
    ("key", "org"), [("a.pdf", "acme"), ("globex/a.pdf", "globex"), ("globex", "acme"), ("Globex/a.pdf", "acme")]
)
def test_the_longest_prefix_names_the_org(key: str, org: str) -> None:
    assert read({"Records": [notifying(key)]})[0].org == org


@pytest.mark.parametrize(
    ("bucket", "key"), [("elsewhere", "a.pdf"), ("narrow", "a.pdf"), ("Inbox", "a.pdf"), ("narrow", "in")]
)
def test_a_bucket_or_key_without_a_rule_is_not_allowed(bucket: str, key: str) -> None:
    reason, detail = refusal({"Records": [notifying(), notifying(key, bucket)]})

    assert reason == "not_allowed"
    assert key not in detail


@pytest.mark.parametrize(
    "records",
    [
        7,
        {"0": notifying()},
        [7],
        [{"s3": {}}],
        [{"eventName": "ObjectCreated:Put"}],
        [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "inbox"}}}],
        [notifying("")],
        [notifying("%ff")],
        [notifying("\ud800")],
        [notifying(eTag="", sequencer="")],
        [notifying(eTag=7)],
    ],
)
def test_a_notification_that_lacks_what_is_needed_is_invalid(records: Any) -> None:
    assert refusal({"Records": records})[0] == "invalid"


# Anything at all

Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
Names = st.sampled_from([*asking(), "metadata", "Records", "Event", "eventName", "s3"])
Near = st.dictionaries(Names, Json, max_size=4).map(lambda changes: asking(**changes))
Notified = st.dictionaries(st.sampled_from(["eventName", "s3"]), Json).map(
    lambda changes: {"Records": [notifying() | changes]}
)
Keyed = st.builds(
    lambda key, object: {"Records": [notifying(key, **object)]},
    st.text(min_size=1),
    st.dictionaries(st.sampled_from(["eTag", "sequencer", "versionId"]), Json),
)
Bodies = st.binary() | (Json | Near | Notified | Keyed).map(lambda content: json.dumps(content).encode())


@given(body=Bodies)
def test_any_bytes_are_registrations_or_malformed(body: bytes) -> None:
    try:
        asked = registrations(Message(topic="s3.put", id="", body=body), RULES)
    except MalformedMessage as error:
        assert error.context["reason"] in {"not_json", "unknown_schema", "invalid", "not_allowed"}
        error.message.encode()
    else:
        for one in asked:
            assert str(uuid.UUID(one.submission_id)) == one.submission_id
            (one.source_uri + one.org).encode()
