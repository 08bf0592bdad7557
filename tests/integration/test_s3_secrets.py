"""Credentials of the object store: in no option, error or log that anybody sees."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.domain import ArtifactRef
from pipeline.errors import ArtifactLost, StoreUnavailable
from pipeline.stores.s3 import S3Store
from pipeline.stores.s3_options import MIB, S3Options
from tests.s3_server import SECRET, Bucket, Kind, fresh_bucket

KEY = "document/version/source/abc.pdf"
KINDS: tuple[Kind, ...] = ("slow_down", "reset", "lost_reply")


@pytest.fixture
def bucket() -> Bucket:
    """One try a request."""
    return fresh_bucket(max_attempts=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret_access_key": SECRET},
        {"access_key_id": {"nested": SECRET}},
        {"endpoint_url": f"https://somebody:{SECRET}@host"},
        {"endpoint_url": f"https://host/?key={SECRET}"},
        {"password": SECRET},
        {"prefix": "/a"},
        {"bucket": "no/bucket"},
        {"part_bytes": 5 * MIB - 1},
    ],
)
def test_wrong_options_are_refused_without_being_shown(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as caught:
        S3Options.model_validate({"bucket": "bucket", **wrong})

    assert SECRET not in str(caught.value)


def test_no_secret_is_shown(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Given in the options, or, with a session token, in the environment."""
    monkeypatch.setattr("botocore.retries.adaptive.ClientRateLimiter.on_sending_request", lambda *_, **__: None)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("botocore").setLevel(logging.NOTSET)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    ambient = bucket.options.model_copy(update={"access_key_id": None, "secret_access_key": None})
    shown = []
    for options in (bucket.options, ambient):
        store = S3Store(options, tmp_path)
        ref = store.put(KEY, b"pixels")
        store.fetch(ref)
        shown += [repr(options), str(options), options.model_dump_json(), repr(options.model_dump())]
        shown += [repr(store), str(store), *failures(store, bucket, ref)]

    assert len(shown) > 20
    assert SECRET not in "\n".join([*shown, caplog.text])


def failures(store: S3Store, bucket: Bucket, ref: ArtifactRef) -> list[str]:
    """All that can be seen of the errors of a store that fails, and of one that lost an object."""
    shown = []
    calls: list[Callable[[], object]] = [lambda: store.put(KEY, b"pixels"), lambda: store.get(ref)]
    for kind in (*KINDS, None):
        if kind is None:
            store.delete(KEY)
            calls = [lambda: store.get(ref)]
        else:
            for method in ("PUT", "GET"):
                bucket.server.fail(method, KEY, kind, times=1)
        for call in calls:
            with pytest.raises((StoreUnavailable, ArtifactLost)) as caught:
                call()
            shown += [repr(caught.value), repr(pickle.dumps(caught.value))]
            shown += traceback.format_exception(caught.value)
    return shown
