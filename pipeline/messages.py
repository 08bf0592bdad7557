"""What the broker carries, in JSON. A schema's number grows with any change that a reader could trip over."""

from __future__ import annotations

import dataclasses
import datetime
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote, unquote_to_bytes

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_serializer,
)

from pipeline.domain import Event, EventKind, Message, Submission, SubmissionState
from pipeline.errors import MalformedMessage
from pipeline.identity import canonical, notification_id
from pipeline.metadata import DocumentMetadata
from pipeline.stores.rabbitmq_options import NotificationRule, Org

T = TypeVar("T")

SUBMISSION: Final = "pagegate.submission/1"
COMPLETION: Final = "pagegate.completion/1"
BODY_BYTES = 1 << 20
SOURCE_CHARS = 16_384
"""A path of 4,096 bytes, each of them percent-quoted, and some more."""
DETAIL_CHARS = 200
CREATED = ("ObjectCreated:", "s3:ObjectCreated:")
"""How AWS and MinIO begin the names of the events in which an object came to be."""
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def _canonical_source(source: str) -> str:
    """An object has one name: `s3://bucket/key` with the key percent-quoted as `s3_uri` does it."""
    if source.startswith("file://") and source.isprintable():
        return source
    bucket, _, key = source.removeprefix("s3://").partition("/")
    if not (source.startswith("s3://") and source.isprintable() and bucket and key):
        raise ValueError("use s3://bucket/key")
    return s3_uri(bucket, _unquoted(key))


Source = Annotated[str, Field(max_length=SOURCE_CHARS), AfterValidator(_canonical_source)]


class _Schema(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class SubmissionMessage(_Schema):
    """Asks for a document to be taken in. The same `submission_id` again asks for nothing more."""

    schema_: Literal["pagegate.submission/1"] = Field(default=SUBMISSION, alias="schema")
    submission_id: uuid.UUID
    org: Org
    source: Source
    metadata: DocumentMetadata = DocumentMetadata()


class CompletionError(_Schema):
    code: str
    message: str
    stage: str | None = None
    page_index: int | None = None


class CompletionMessage(_Schema):
    """Tells how a submission has ended. One that was put back and ends again is told again."""

    schema_: Literal["pagegate.completion/1"] = Field(default=COMPLETION, alias="schema")
    event: EventKind
    submission_id: uuid.UUID
    document_id: uuid.UUID
    version_id: uuid.UUID | None
    org: str
    source: str
    revision: int
    state: SubmissionState
    error: CompletionError | None
    occurred_at: AwareDatetime
    """By the ledger's clock, in UTC, with six digits of a second."""

    @field_serializer("occurred_at")
    def _iso(self, moment: datetime.datetime) -> str:
        return moment.astimezone(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """What a message asks to be registered."""

    submission_id: str
    org: str
    source_uri: str
    metadata: DocumentMetadata


def message_of(event: Event) -> Message:
    """The event as a message, the same whenever it is made. A registration announces itself as the message that
    would ask for it, so that the ledger could be told anew by the broker."""
    submission = event.submission
    content = _announcement(submission) if event.kind == EventKind.REGISTERED else _completion(event)
    message_id = f"{event.kind}:{submission.id}:{event.micros}"
    return Message(topic=str(event.kind), id=message_id, body=canonical(content))


def registrations(message: Message, rules: Sequence[NotificationRule]) -> list[Registration]:
    """What a message asks for: one of ours, or an S3 notification as AWS and MinIO send it.

    Notifications of anything but new objects ask for nothing. Raises `MalformedMessage` with the reason not_json,
    unknown_schema, invalid or not_allowed; its text names fields and never repeats what they hold.
    """
    content = _parsed(message.body)
    if isinstance(content, dict):
        if content.get("schema") == SUBMISSION:
            return [_asked(content)]
        if "Records" in content:
            return _notified(content["Records"], rules)
        if content.get("Event") == "s3:TestEvent":
            return []
    raise MalformedMessage(f"neither {SUBMISSION} nor an S3 notification", reason="unknown_schema")


def s3_uri(bucket: str, key: str) -> str:
    return f"s3://{bucket}/{quote(key)}"


def _announcement(submission: Submission) -> dict[str, Any]:
    return {
        "schema": SUBMISSION,
        "submission_id": submission.id,
        "org": submission.org,
        "source": submission.source_uri,
        "metadata": submission.metadata.stored(),
    }


def _completion(event: Event) -> dict[str, Any]:
    submission = event.submission
    completion = CompletionMessage(
        event=event.kind,
        submission_id=uuid.UUID(submission.id),
        document_id=uuid.UUID(submission.document_id),
        version_id=uuid.UUID(submission.version_id) if submission.version_id else None,
        org=submission.org,
        source=submission.source_uri,
        revision=submission.revision,
        state=submission.state,
        error=_error(submission),
        occurred_at=EPOCH + datetime.timedelta(microseconds=event.micros),
    )
    return completion.model_dump(mode="json", by_alias=True)


def _error(submission: Submission) -> CompletionError | None:
    if submission.error_code is None:
        return None
    return CompletionError(
        code=submission.error_code,
        message=submission.error_message or "",
        stage=submission.error_stage,
        page_index=submission.error_page,
    )


def _parsed(body: bytes) -> Any:
    """The JSON value: UTF-8, numbers that JSON has, each key once. Raises `MalformedMessage`."""
    if len(body) > BODY_BYTES:
        raise MalformedMessage(f"the body has more than {BODY_BYTES:,} bytes", reason="invalid")
    try:
        return json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError:
        raise MalformedMessage("the body is nested too deeply", reason="invalid") from None
    except ValueError:  # not UTF-8, not JSON, or a number with thousands of digits; its text may quote the body
        raise MalformedMessage("the body is no JSON in UTF-8", reason="not_json") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise MalformedMessage("a key occurs twice in one object", reason="invalid")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def _asked(content: Mapping[str, Any]) -> Registration:
    asked = _valid(SubmissionMessage.model_validate, content)
    return Registration(
        submission_id=str(asked.submission_id), org=asked.org, source_uri=asked.source, metadata=asked.metadata
    )


class _Happened(BaseModel):
    """What all records have, whatever they tell of."""

    event: str = Field(alias="eventName")
    s3: Any = None


class _Bucket(BaseModel):
    name: Annotated[str, Field(min_length=1)]


class _Object(BaseModel):
    key: Annotated[str, Field(min_length=1, max_length=SOURCE_CHARS)]
    version: str = Field(default="", alias="versionId")
    sequencer: str = ""
    etag: str = Field(default="", alias="eTag")


class _Entity(BaseModel):
    bucket: _Bucket
    object: _Object


_RECORDS = TypeAdapter(list[_Happened])


def _notified(records: Any, rules: Sequence[NotificationRule]) -> list[Registration]:
    happened = _valid(_RECORDS.validate_python, records)
    created = [_valid(_Entity.model_validate, record.s3) for record in happened if record.event.startswith(CREATED)]
    keyed = [(entity, _key(entity.object.key)) for entity in created]
    return [_created(entity, key, rules) for entity, key in keyed if not key.endswith("/")]  # that is a folder's mark


def _created(entity: _Entity, key: str, rules: Sequence[NotificationRule]) -> Registration:
    bucket, made = entity.bucket.name, entity.object
    if not (made.version or made.sequencer or made.etag):
        raise MalformedMessage("object: give versionId, sequencer or eTag", reason="invalid")
    return Registration(
        submission_id=notification_id(bucket, key, made.version, made.sequencer, made.etag),
        org=_rule(bucket, key, rules).org,
        source_uri=s3_uri(bucket, key),
        metadata=DocumentMetadata(),
    )


def _key(quoted: str) -> str:
    """Keys are sent as a form sends them: percent-quoted UTF-8, with ``+`` for a space."""
    try:
        return _unquoted(quoted.replace("+", " "))
    except ValueError as error:
        raise MalformedMessage(f"object.key: {error}", reason="invalid") from None


def _unquoted(quoted: str) -> str:
    """Raises `ValueError` with a text of its own."""
    try:
        return unquote_to_bytes(quoted).decode()
    except UnicodeError:
        raise ValueError("use percent-quoted UTF-8") from None


def _rule(bucket: str, key: str, rules: Sequence[NotificationRule]) -> NotificationRule:
    fitting = [rule for rule in rules if rule.bucket == bucket and key.startswith(rule.prefix)]
    if not fitting:
        raise MalformedMessage("no rule of `notifications` allows this bucket and key", reason="not_allowed")
    return max(fitting, key=lambda rule: len(rule.prefix))


def _valid(validate: Callable[[Any], T], content: Any) -> T:
    try:
        return validate(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    field = ascii(".".join(str(part) for part in first["loc"]))[1:-1][:DETAIL_CHARS] or "body"
    problem = first["msg"] if first["type"] == "value_error" else first["type"]  # pydantic's own text may quote
    raise MalformedMessage(f"{field}: {problem}", reason="invalid")
