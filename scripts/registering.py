"""Sources on the command line become submissions: uploaded where the store is shared, registered, announced."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.progress import Progress

from pipeline.domain import ArtifactRef, Submission
from pipeline.errors import ConfigurationError, DocumentError
from pipeline.identity import source_key, version_id
from pipeline.intake import source_path
from pipeline.metadata import DocumentMetadata, parse_metadata
from pipeline.protocols import MultipartStore
from pipeline.upload import upload
from pipeline.wiring import Pipeline
from scripts import output
from scripts.sources import source_uris

log = logging.getLogger("pagegate")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Registrar:
    """Registers the sources of one command for one org."""

    pipeline: Pipeline
    org: str
    metadata: DocumentMetadata

    def register(self, named: Sequence[str]) -> list[Submission]:
        """One submission a source, in order. Raises `ConfigurationError` for a path that is not there."""
        return [self._submit(uri) for uri in source_uris(named, self.pipeline.sources)]

    def _submit(self, uri: str) -> Submission:
        store: Any = self.pipeline.store
        shared = self.pipeline.settings.store.kind == "s3" and urlsplit(uri).scheme == "file"
        uploaded = self._upload(uri, store) if shared else None
        return self.pipeline.ledger.submissions.submit(self.org, uri, self.metadata, upload=uploaded)

    def _upload(self, uri: str, store: MultipartStore) -> ArtifactRef:
        """Other nodes cannot see this one's files, so the source goes into the store before it is registered."""
        path, ledger = source_path(uri), self.pipeline.ledger
        sha256, size = _digest(path)
        document = ledger.submissions.document_of(self.org, uri)
        ref = ArtifactRef(key=source_key(document, version_id(document, sha256), sha256), sha256=sha256, size=size)
        if size > self.pipeline.settings.limits.file_bytes:
            return ref  # intake refuses it by its size, and does not look for it
        with Progress(console=output.stderr, transient=True, disable=not output.stderr.is_terminal) as progress:
            bar = progress.add_task(f"uploading {path.name}", total=ref.size)
            try:
                upload(path, ref, store, ledger.uploads, lambda sent: progress.update(bar, completed=sent))
            except DocumentError as error:  # intake will not find it, and ends its submission; the others go on
                log.warning("%s was not uploaded: %s", path, error.message)
        return ref


def _digest(path: Path) -> tuple[str, int]:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest(), path.stat().st_size
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error


def metadata_of(
    title: str | None,
    type: str | None,
    published: datetime.datetime | None,
    effective: datetime.datetime | None,
    expired: datetime.datetime | None,
    labels: Sequence[str],
    attributes: Sequence[str],
) -> DocumentMetadata:
    """What the options of `ingest` and `submit` say of the documents. Raises `ConfigurationError`."""
    days = {"published": published, "effective": effective, "expired": expired}
    values: dict[str, Any] = {name: day.date() for name, day in days.items() if day}
    values |= {"title": title, "type": type, "labels": tuple(labels)}
    values["attributes"] = dict(_pair(attribute) for attribute in attributes)
    return parse_metadata(values)


def _pair(attribute: str) -> tuple[str, str]:
    name, equals, value = attribute.partition("=")
    if not equals:
        raise ConfigurationError(f"--attribute {attribute}: write NAME=VALUE")
    return name, value
