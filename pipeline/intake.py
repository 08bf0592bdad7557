"""A submission becomes a version with pages: its source is copied under its digest, and looked at once."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from pipeline.domain import ArtifactRef, Submission, VersionDraft
from pipeline.errors import (
    DocumentError,
    FileTooLarge,
    InfrastructureError,
    LeaseLost,
    SourceMissing,
    StoreUnavailable,
)
from pipeline.identity import source_key, version_id
from pipeline.pdf import PdfInfo, PdfReader
from pipeline.protocols import Ledger, ObjectStore
from pipeline.settings import PdfLimits

DEFER_S = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Intake:
    """Takes one submission after the other."""

    ledger: Ledger
    store: ObjectStore
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
        try:
            self.ledger.submissions.accept(token, self._draft(submission))
        except DocumentError as error:
            self.ledger.submissions.fail(token, error.code, error.message)
        except InfrastructureError as error:
            self.ledger.submissions.defer(token, error.code, error.message, DEFER_S)
        except LeaseLost:
            return submission  # whoever took it over goes on with it
        return submission

    def _draft(self, submission: Submission) -> VersionDraft:
        path = source_path(submission.source_uri)
        sha256, size = _digest(path, self.limits.file_bytes)
        version = version_id(submission.document_id, sha256)
        source = ArtifactRef(key=source_key(submission.document_id, version, sha256), sha256=sha256, size=size)
        known = self.ledger.submissions.known(version)
        draft = known or _describe(version, source, path, self.reader.inspect(path))
        if not known or not self.store.holds(source):
            with path.open("rb") as stream:  # a bad file was refused above, before anything of it is kept
                self.store.put_stream(source.key, stream, sha256)
        return draft


def source_path(source_uri: str) -> Path:
    """The local file that a ``file://`` URI names. Raises `SourceMissing` for any other kind."""
    parts = urlsplit(source_uri)
    if parts.scheme != "file":
        raise SourceMissing(f"{source_uri}: only local files can be read in this set-up")
    return Path(os.fsdecode(unquote_to_bytes(parts.path)))


def _describe(version: str, source: ArtifactRef, path: Path, info: PdfInfo) -> VersionDraft:
    notes = {"repaired": info.repaired, "attachments": list(info.attachments), "xfa": info.xfa}
    return VersionDraft(
        version_id=version,
        source=source,
        title=info.title or path.stem,
        page_labels=info.page_labels,
        notes={name: value for name, value in notes.items() if value},
    )


def _digest(path: Path, limit: int) -> tuple[str, int]:
    """sha256 and size of a file that must be there and not larger than `limit` bytes."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise FileTooLarge(f"{path} has {size:,} bytes, more than limits.file_bytes = {limit:,}")
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest(), size
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise SourceMissing(f"{path} is not there: put the file back and submit it again") from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from error
