"""Sources that lie in some bucket: ``s3://bucket/key``, the key percent-quoted."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from botocore.exceptions import ClientError

from pipeline.errors import FileTooLarge, PagegateError, SourceMissing
from pipeline.stores.disk import discard, translated
from pipeline.stores.s3_client import connect, pages
from pipeline.stores.s3_errors import ABSENT, S3Errors
from pipeline.stores.s3_options import S3Options

SCHEME = "s3://"
CHUNK = 1 << 20
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")

TEMPORARY = "pagegate-source-"
"""How the names of our temporary files begin."""

STALE_S = 24 * 3600.0
"""A temporary file older than this was left by a process that was killed."""


class S3Sources:
    """Reads sources from any bucket of the store's endpoint, with the store's credentials.

    The store's own bucket and prefix mean nothing here. Its methods may be called from any thread. Raises
    `SourceMissing` for what is not there or is no such URI, `StoreUnavailable` when the endpoint fails or refuses.
    """

    def __init__(self, options: S3Options, folder: Path | None = None) -> None:
        """Temporary files go to `folder`; default: where the system has them. Asks nothing of the endpoint yet."""
        self._client = connect(options)
        self._folder = folder or Path(tempfile.gettempdir())
        _remove_stale(self._folder)

    @contextlib.contextmanager
    def fetch(self, uri: str, limit_bytes: int) -> Iterator[Path]:
        """A temporary file with the object's bytes, all of one version of it; it is removed afterwards.

        Raises `FileTooLarge` before anything of a longer object is read, `DiskFull` where it finds no room.
        """
        path = self._folder / f"{TEMPORARY}{uuid.uuid4().hex}.pdf"
        with contextlib.closing(self._open(uri, limit_bytes)) as body:
            with _translated(path):
                self._folder.mkdir(parents=True, exist_ok=True)
                file = path.open("xb")
            try:
                self._copy(body, file, path, self._errors(uri))
            except BaseException:
                discard(file, path)
                raise
        try:
            yield path
        finally:
            discard(file, path)

    def list(self, uri: str) -> Iterator[str]:
        """The ``.pdf`` objects below ``s3://bucket/`` or ``s3://bucket/prefix/``, in the order of their keys; of a URI
        that names one object, that. Each in the one form that an object has here: percent-quoted."""
        bucket, key = _parsed(uri)
        if key and not key.endswith("/"):
            yield _uri(bucket, key)
            return
        for answer in pages(self._client, self._errors(uri), "list_objects_v2", Bucket=bucket, Prefix=key):
            for entry in answer.get("Contents", ()):
                if entry["Key"].lower().endswith(".pdf"):
                    yield _uri(bucket, entry["Key"])

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _open(self, uri: str, limit: int) -> Any:
        """The object's body, not yet read."""
        bucket, key = _parsed(uri)
        if not key:
            raise SourceMissing(f"{uri} names no object: give s3://bucket/key")
        with self._errors(uri).translated():
            answer = self._client.get_object(Bucket=bucket, Key=key)
        if answer["ContentLength"] > limit:
            answer["Body"].close()
            raise FileTooLarge(f"{uri} has {answer['ContentLength']:,} bytes, more than limits.file_bytes = {limit:,}")
        return answer["Body"]

    def _copy(self, body: Any, file: BinaryIO, path: Path, errors: S3Errors) -> None:
        while True:
            with errors.translated():  # boto3 counts the bytes: one that is missing is a failure
                chunk = body.read(CHUNK)
            if not chunk:
                break
            with _translated(path):
                file.write(chunk)
        with _translated(path):
            file.close()

    def _errors(self, uri: str) -> S3Errors:
        return _SourceErrors(self._client.meta.endpoint_url, uri)


class _SourceErrors(S3Errors):
    """An absent bucket, too, is a missing source here."""

    def __init__(self, endpoint: str, uri: str) -> None:
        super().__init__(endpoint, _parsed(uri)[0])
        self._uri = uri

    def _answered(self, error: ClientError, key: str | None) -> PagegateError:
        if error.response.get("Error", {}).get("Code") in (*ABSENT, "NoSuchBucket"):
            return SourceMissing(f"{self._uri} is not there: put it back and submit it again")
        return super()._answered(error, key)


def _parsed(uri: str) -> tuple[str, str]:
    """Bucket and key. Not by a parser of URLs: a key may hold ``?`` and ``#``."""
    bucket, _, quoted = uri.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or not BUCKET.fullmatch(bucket):
        raise SourceMissing(f"{uri} names no object: give s3://bucket/key")
    try:
        return bucket, unquote(quoted, errors="strict")
    except UnicodeDecodeError as error:
        raise SourceMissing(f"{uri} is not percent-quoted UTF-8: correct it") from error


def _uri(bucket: str, key: str) -> str:
    return f"{SCHEME}{bucket}/{quote(key)}"


def _translated(path: Path) -> contextlib.AbstractContextManager[None]:
    return translated(path, "the folder of temporary files", "free some space, or set TMPDIR to a larger disk")


def _remove_stale(folder: Path) -> None:
    for path in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process was faster, or it is another user's
            if path.stat().st_mtime < time.time() - STALE_S:
                path.unlink()
