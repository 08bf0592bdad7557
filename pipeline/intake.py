"""A submission becomes a version with pages: its source is copied under its digest, and looked at once."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pipeline.domain import ArtifactRef, Submission, VersionDraft
from pipeline.errors import (
    ArtifactLost,
    DocumentError,
    FileTooLarge,
    InfrastructureError,
    LeaseLost,
    SourceChanged,
    SourceMissing,
    StoreUnavailable,
)
from pipeline.failpoints import reached
from pipeline.identity import source_key, version_id
from pipeline.pdf import PdfInfo, PdfReader
from pipeline.protocols import Ledger, ObjectStore, RemoteSources
from pipeline.settings import PdfLimits

DEFER_S = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Intake:
    """Takes one submission after the other."""

    ledger: Ledger
    store: ObjectStore
    sources: RemoteSources | None
    reader: PdfReader
    limits: PdfLimits

    def run(self, lease_s: float, worker: str) -> Submission | None:
        """Take in one submission; None if none waits.

        A source that can never become a version ends its submission with a typed reason; nothing of it is kept.
        """
        claimed = self.ledger.submissions.claim(lease_s, worker)
        if claimed is None:
            return None
        token, submission = claimed
        reached("intake.claimed")
        try:
            self._take_in(token, submission)
        except InfrastructureError as error:
            self.ledger.submissions.defer(token, error.code, error.message, DEFER_S)
        except LeaseLost:
            return submission  # whoever took it over goes on with it
        return submission

    def _take_in(self, token: str, submission: Submission) -> None:
        try:
            with self._source(submission) as path:
                draft = self._draft(submission, path)
        except DocumentError as error:
            self._discard(submission)
            self.ledger.submissions.fail(token, error.code, error.message)
            reached("intake.failed")
        else:
            self.ledger.submissions.accept(token, draft)
            reached("intake.accepted")

    @contextlib.contextmanager
    def _source(self, submission: Submission) -> Iterator[Path]:
        """The source as a local file. Raises `SourceMissing`, `SourceChanged` or `FileTooLarge`."""
        if submission.upload:
            yield self._uploaded(submission.upload)
        elif urlsplit(submission.source_uri).scheme == "file":
            yield source_path(submission.source_uri)
        elif self.sources is not None:
            with self.sources.fetch(submission.source_uri, self.limits.file_bytes) as path:
                yield path
        else:
            raise SourceMissing(f"{submission.source_uri}: only local files can be read without store.kind: s3")

    def _uploaded(self, upload: ArtifactRef) -> Path:
        """Its bytes are read back here: what an upload confirmed is its size and what it was said to hold."""
        if upload.size > self.limits.file_bytes:
            raise FileTooLarge(_too_large(upload.key, upload.size, self.limits.file_bytes))
        try:
            return self.store.fetch(upload)
        except ArtifactLost as error:
            if self.store.holds(upload):
                raise SourceChanged("the source changed while it was uploaded: submit it again") from error
            raise SourceMissing("the uploaded source is not in the object store any more: submit it again") from error

    def _discard(self, submission: Submission) -> None:
        """Nothing is kept of a source that became no version; another submission may have made it one."""
        upload = submission.upload
        if upload and self.ledger.submissions.known(version_id(submission.document_id, upload.sha256)) is None:
            self.store.delete(upload.key)

    def _draft(self, submission: Submission, path: Path) -> VersionDraft:
        sha256, size = _digest(path, self.limits.file_bytes)
        version = version_id(submission.document_id, sha256)
        source = ArtifactRef(key=source_key(submission.document_id, version, sha256), sha256=sha256, size=size)
        known = self.ledger.submissions.known(version)
        draft = known or _describe(version, source, _stem(submission.source_uri), self.reader.inspect(path))
        reached("intake.source_read")
        kept = known is not None or submission.upload == source
        if not kept or not self.store.holds(source):
            with path.open("rb") as stream:  # a bad file was refused above, before anything of it is kept
                self.store.put_stream(source.key, stream, sha256)
            reached("intake.source_put")
        return draft


def source_path(source_uri: str) -> Path:
    """The local file that a ``file://`` URI names."""
    return Path(os.fsdecode(unquote_to_bytes(urlsplit(source_uri).path)))


def _stem(source_uri: str) -> str:
    return Path(unquote(urlsplit(source_uri).path)).stem


def _describe(version: str, source: ArtifactRef, stem: str, info: PdfInfo) -> VersionDraft:
    notes = {"repaired": info.repaired, "attachments": list(info.attachments), "xfa": info.xfa}
    return VersionDraft(
        version_id=version,
        source=source,
        title=info.title or stem,
        page_labels=info.page_labels,
        notes={name: value for name, value in notes.items() if value},
    )


def _too_large(name: object, size: int, limit: int) -> str:
    return f"{name} has {size:,} bytes, more than limits.file_bytes = {limit:,}"


def _digest(path: Path, limit: int) -> tuple[str, int]:
    """sha256 and size of a file that must be there and not larger than `limit` bytes."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise FileTooLarge(_too_large(path, size, limit))
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest(), size
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise SourceMissing(f"{path} is not there: put the file back and submit it again") from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from error
