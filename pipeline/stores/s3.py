"""The object store of a cluster: a bucket of any S3 endpoint."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import boto3
from botocore.config import Config

from pipeline.domain import ArtifactRef
from pipeline.errors import ArtifactLost, ConfigurationError, SourceChanged, StoreUnavailable
from pipeline.stores.disk_cache import DiskCache
from pipeline.stores.keys import KEY, check_key
from pipeline.stores.s3_errors import S3Errors
from pipeline.stores.s3_options import S3Options

CHUNK = 1 << 20
"""Bytes read at a time, so that a large object needs no more memory than a small one."""

DIGEST = "sha256"
"""Name of the metadata that holds our digest. An ETag is none: with parts or encryption it is something else."""


class S3Store:
    """`ObjectStore` in a bucket, for any number of processes at once; its methods may be called from any thread,
    but `fetch` and what it returned belong to one.

    S3 shows an object whole or not at all: a PUT appears when its last byte was taken, an upload by parts when
    it is completed. Putting always sends the bytes: asking first would cost a request for every new object to
    spare one for the rare old one, would not heal an object whose bytes changed under right metadata, and would
    leave an orphan as old as it was, for `gc` to remove at that moment. In a bucket with versioning, a rule should
    expire old versions; in any bucket, one should abort uploads that a killed process left.

    `fetch` returns a file of the node's `DiskCache` under `cache`, and asks the bucket only where there is none:
    it proves nothing about the bucket, `get` does.

    Raises `StoreUnavailable`, naming endpoint and bucket and never a credential, when the store fails, refuses,
    or is not there, after `max_attempts` tries; `BadKey` for an odd key.
    """

    def __init__(self, options: S3Options, cache: Path) -> None:
        """Asks nothing of the endpoint yet. Raises `ConfigurationError` if the CA file is absent."""
        self._bucket = options.bucket
        self._prefix = options.prefix and f"{options.prefix}/"
        self._part_bytes = options.part_bytes
        self._checksums = options.checksums == "when_supported"
        self._client = _connect(options)
        self._errors = S3Errors(self._client.meta.endpoint_url, options.bucket)
        self._cache = DiskCache(cache, options.cache_bytes)

    def put(self, key: str, content: bytes) -> ArtifactRef:
        """Store `content` in one request, whatever is there."""
        place, digest = self._place(key), hashlib.sha256(content)
        with self._errors.translated():
            self._client.put_object(
                **place, Body=content, Metadata={DIGEST: digest.hexdigest()}, **self._checksum(digest.digest())
            )
        return ArtifactRef(key=key, sha256=digest.hexdigest(), size=len(content))

    def put_stream(self, key: str, stream: BinaryIO, sha256: str) -> ArtifactRef:
        """Store a stream of known digest in three times `part_bytes` of memory. What reading it raises goes to the
        caller."""
        place = self._place(key)
        part = _read_part(stream, self._part_bytes)
        if len(part) == self._part_bytes:
            return ArtifactRef(key=key, sha256=sha256, size=self._upload(place, part, stream, sha256))
        _compare_source(key, hashlib.sha256(part).hexdigest(), sha256)
        return self.put(key, part)

    def get(self, ref: ArtifactRef) -> bytes:
        return b"".join(self._open(ref))

    def fetch(self, ref: ArtifactRef) -> Path:
        """A verified copy on this node, kept until the next `fetch`; one request at most."""
        check_key(ref.key)
        return self._cache.fetch(ref, self._open)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """One request for a thousand keys. What is no key of ours (a folder's marker) is left out."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        answers = iter(pages)
        while answer := self._next(answers):
            for entry in answer.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                if KEY.fullmatch(key):
                    yield key

    def delete(self, key: str) -> None:
        """Remove an object, and this node's copy of it; other nodes' copies go when they were not used for a day."""
        place = self._place(key)
        with self._errors.translated():
            self._client.delete_object(**place)
        self._cache.discard(key)

    def holds(self, ref: ArtifactRef) -> bool:
        """By size and the digest that we noted with it: one request, and nothing is read."""
        return self._is_there(self._place(ref.key), ref.sha256, ref.size)

    def close(self) -> None:
        """Close the connections and unpin the last file."""
        self._client.close()
        self._cache.close()

    def _place(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + check_key(key)}

    def _checksum(self, sha256: bytes) -> dict[str, str]:
        """As a header: boto3's own checksums come in a trailer, which fewer servers understand."""
        return {"ChecksumSHA256": base64.b64encode(sha256).decode()} if self._checksums else {}

    def _next(self, answers: Iterator[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        with self._errors.translated():
            return next(answers, None)

    def _open(self, ref: ArtifactRef) -> Generator[bytes, None, None]:
        """Ask for the object at once; the chunks are verified when the last one was taken."""
        place = self._place(ref.key)
        with self._errors.translated(ref.key):
            answer = self._client.get_object(**place)
        if answer["ContentLength"] != ref.size:
            answer["Body"].close()
            raise ArtifactLost(
                f"{ref.key} is damaged, it has {answer['ContentLength']:,} bytes, not {ref.size:,}: "
                "its stage has to run again",
                key=ref.key,
            )
        return self._chunks(ref, answer["Body"])

    def _chunks(self, ref: ArtifactRef, body: Any) -> Generator[bytes, None, None]:
        digest = hashlib.sha256()
        with contextlib.closing(body):
            while chunk := self._read(body):
                digest.update(chunk)
                yield chunk
        if digest.hexdigest() != ref.sha256:
            raise ArtifactLost(
                f"{ref.key} is damaged, its sha256 is {digest.hexdigest()}, not {ref.sha256}: "
                "its stage has to run again",
                key=ref.key,
            )

    def _read(self, body: Any) -> bytes:
        with self._errors.translated():
            chunk: bytes = body.read(CHUNK)
            return chunk

    def _upload(self, place: Mapping[str, str], part: bytes, stream: BinaryIO, sha256: str) -> int:
        """Send part after part and complete; on any failure the upload is aborted. Returns the size."""
        algorithm = {"ChecksumAlgorithm": "SHA256"} if self._checksums else {}
        with self._errors.translated():
            begun = self._client.create_multipart_upload(**place, Metadata={DIGEST: sha256}, **algorithm)
        upload = {**place, "UploadId": begun["UploadId"]}
        with contextlib.ExitStack() as undo:
            undo.callback(self._abort, upload)
            found, size, parts = self._send(upload, part, stream)
            _compare_source(place["Key"].removeprefix(self._prefix), found, sha256)
            self._complete(upload, parts, sha256, size)
            undo.pop_all()
        return size

    def _send(self, upload: Mapping[str, str], part: bytes, stream: BinaryIO) -> tuple[str, int, list[dict[str, Any]]]:
        """Digest and size of the whole stream, and what completing has to list."""
        whole, size = hashlib.sha256(), 0
        parts: list[dict[str, Any]] = []
        while part:
            whole.update(part)
            size += len(part)
            checksum = self._checksum(hashlib.sha256(part).digest()) if self._checksums else {}
            with self._errors.translated():
                sent = self._client.upload_part(**upload, PartNumber=len(parts) + 1, Body=part, **checksum)
            parts.append({"PartNumber": len(parts) + 1, "ETag": sent["ETag"], **checksum})
            part = b""  # give it back before the next one is read
            part = _read_part(stream, self._part_bytes)
        return whole.hexdigest(), size, parts

    def _complete(self, upload: Mapping[str, str], parts: list[dict[str, Any]], sha256: str, size: int) -> None:
        """A completion whose answer was lost is settled by looking at the object."""
        try:
            with self._errors.translated():
                self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        except StoreUnavailable:
            if not self._is_there(upload, sha256, size):
                raise

    def _is_there(self, place: Mapping[str, str], sha256: str, size: int) -> bool:
        try:
            with self._errors.translated(place["Key"]):
                head = self._client.head_object(Bucket=place["Bucket"], Key=place["Key"])
        except ArtifactLost:
            return False
        return bool(head["ContentLength"] == size and head["Metadata"].get(DIGEST) == sha256)

    def _abort(self, upload: Mapping[str, str]) -> None:
        """As far as the store lets us: the failure that led here is the one to tell."""
        with contextlib.suppress(StoreUnavailable), self._errors.translated():
            self._client.abort_multipart_upload(**upload)


def _connect(options: S3Options) -> Any:
    """A client of its own session, safe for threads."""
    if options.ca_bundle and not options.ca_bundle.is_file():
        raise ConfigurationError(f"no CA file at {options.ca_bundle}: correct ca_bundle of the object store")
    logger = logging.getLogger("botocore")
    logger.setLevel(max(logger.level, logging.INFO))  # its debug lines show session tokens
    secrets = (options.access_key_id, options.secret_access_key)
    key_id, secret = (value.get_secret_value() if value else None for value in secrets)
    return boto3.session.Session().client(
        "s3",
        endpoint_url=options.endpoint_url,
        region_name=options.region,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        verify=str(options.ca_bundle) if options.ca_bundle else None,
        config=_config(options),
    )


def _config(options: S3Options) -> Config:
    """boto3's own checksums are off: we send the SHA-256, and check what we read against the ledger's digest."""
    return Config(
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        retries={"mode": "adaptive", "total_max_attempts": options.max_attempts},
        max_pool_connections=options.pool_connections,
        s3={"addressing_style": options.addressing_style},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
        user_agent_extra="pagegate",
    )


def _read_part(stream: BinaryIO, size: int) -> bytes:
    """`size` bytes, fewer only at the end: a stream may give less than it was asked for."""
    chunks, missing = [], size
    while missing and (chunk := stream.read(min(CHUNK, missing))):
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)


def _compare_source(key: str, found: str, sha256: str) -> None:
    if found != sha256:
        raise SourceChanged(
            f"the bytes for {key} have sha256 {found}, not {sha256}: "
            "they changed while they were read, submit the source again",
            key=key,
        )
