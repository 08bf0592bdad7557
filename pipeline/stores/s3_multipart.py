"""Uploads by parts: the one place where they are begun, sent, completed and aborted."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.domain import ArtifactRef, UploadedPart
from pipeline.errors import ArtifactLost, UploadGone
from pipeline.identity import OURS
from pipeline.stores.keys import check_key
from pipeline.stores.s3_client import connect, pages
from pipeline.stores.s3_errors import S3Errors
from pipeline.stores.s3_options import S3Options

DIGEST = "sha256"
"""Name of the metadata that holds our digest. An ETag is none: with parts or encryption it is something else."""

CHECKSUM = "ChecksumSHA256"

QUOTE = '"'
"""Around an ETag; not every server puts them into both answers that we compare."""


class S3Multipart:
    """The part of `S3Store` that is `MultipartStore`: a bucket, and its keys under our prefix.

    Raises `StoreUnavailable`, or `UploadGone` where the bucket knows the upload no longer.
    """

    def __init__(self, options: S3Options) -> None:
        """Asks nothing of the endpoint yet. Raises `ConfigurationError` if the CA file is absent."""
        self.part_bytes = options.part_bytes
        self._bucket = options.bucket
        self._prefix = options.prefix and f"{options.prefix}/"
        self._checksums = options.checksums == "when_supported"
        self._client = connect(options)
        self._errors = S3Errors(self._client.meta.endpoint_url, options.bucket)

    def begin_upload(self, ref: ArtifactRef) -> str:
        return self._begin(ref.key, ref.sha256)

    def uploaded_parts(self, key: str, upload_id: str) -> list[UploadedPart]:
        """One request for a thousand parts."""
        return [
            UploadedPart(number=entry["PartNumber"], size=entry["Size"], etag=entry["ETag"].strip(QUOTE))
            for entry in self._listed(key, upload_id)
        ]

    def send_part(self, key: str, upload_id: str, number: int, content: bytes) -> UploadedPart:
        """The bucket checks the content's SHA-256, where checksums are on, before it has the part."""
        sent = self._send(key, upload_id, number, content)
        return UploadedPart(number=number, size=len(content), etag=sent["ETag"].strip(QUOTE))

    def complete_upload(self, ref: ArtifactRef, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        """S3 wants the checksums of an upload begun with them; the parts may be of a process that is no more, so
        they are asked for."""
        checksums = {entry["PartNumber"]: entry.get(CHECKSUM) for entry in self._listed(ref.key, upload_id)}
        entries = [_entry(part.number, f"{QUOTE}{part.etag}{QUOTE}", checksums.get(part.number)) for part in parts]
        self._complete(ref.key, upload_id, entries)

    def abort_upload(self, key: str, upload_id: str) -> None:
        with contextlib.suppress(UploadGone), self._errors.translated():
            self._client.abort_multipart_upload(**self._place(key), UploadId=upload_id)

    def open_uploads(self, older_than_s: float) -> Iterator[tuple[str, str]]:
        """Those below our prefix whose key this pipeline made. The bucket's time of an upload is compared with this
        node's clock: S3 answers no node whose clock is off by more than 15 minutes."""
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        for answer in self._pages("list_multipart_uploads", Prefix=self._prefix):
            for entry in answer.get("Uploads", ()):
                key = entry["Key"].removeprefix(self._prefix)
                if entry["Initiated"] < before and OURS.fullmatch(key):
                    yield key, entry["UploadId"]

    def holds(self, ref: ArtifactRef) -> bool:
        """By size and the digest that we noted with it: one request, and nothing is read."""
        try:
            with self._errors.translated(ref.key):
                head = self._client.head_object(**self._place(ref.key))
        except ArtifactLost:
            return False
        return bool(head["ContentLength"] == ref.size and head["Metadata"].get(DIGEST) == ref.sha256)

    def _begin(self, key: str, sha256: str) -> str:
        algorithm = {"ChecksumAlgorithm": "SHA256"} if self._checksums else {}
        with self._errors.translated():
            begun = self._client.create_multipart_upload(**self._place(key), Metadata={DIGEST: sha256}, **algorithm)
        return str(begun["UploadId"])

    def _send(self, key: str, upload_id: str, number: int, content: bytes) -> dict[str, Any]:
        """Returns what completing has to say of this part."""
        checksum = self._checksum(hashlib.sha256(content).digest()) if self._checksums else {}
        part = {**self._place(key), "UploadId": upload_id, "PartNumber": number}
        with self._errors.translated():
            sent = self._client.upload_part(**part, Body=content, **checksum)
        return _entry(number, sent["ETag"], checksum.get(CHECKSUM))

    def _complete(self, key: str, upload_id: str, entries: Sequence[Mapping[str, Any]]) -> None:
        with self._errors.translated():
            self._client.complete_multipart_upload(
                **self._place(key), UploadId=upload_id, MultipartUpload={"Parts": entries}
            )

    def _listed(self, key: str, upload_id: str) -> Iterator[Mapping[str, Any]]:
        place = {"Key": self._place(key)["Key"], "UploadId": upload_id}
        for answer in self._pages("list_parts", **place):
            yield from answer.get("Parts", ())

    def _pages(self, operation: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        return pages(self._client, self._errors, operation, Bucket=self._bucket, **arguments)

    def _place(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + check_key(key)}

    def _checksum(self, sha256: bytes) -> dict[str, str]:
        """As a header: boto3's own checksums come in a trailer, which fewer servers understand."""
        return {CHECKSUM: base64.b64encode(sha256).decode()} if self._checksums else {}


def _entry(number: int, etag: str, checksum: str | None) -> dict[str, Any]:
    return {"PartNumber": number, "ETag": etag} | ({CHECKSUM: checksum} if checksum else {})
