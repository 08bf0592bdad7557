"""The object store of a cluster: a bucket of any S3 endpoint."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.domain import ArtifactRef
from pipeline.errors import ArtifactLost, SourceChanged, StoreUnavailable, UploadGone
from pipeline.stores.disk_cache import DiskCache
from pipeline.stores.keys import KEY, check_key
from pipeline.stores.s3_multipart import DIGEST, S3Multipart
from pipeline.stores.s3_options import S3Options

CHUNK = 1 << 20
"""Bytes read at a time, so that a large object needs no more memory than a small one."""


class S3Store(S3Multipart):
    """`ObjectStore` and `MultipartStore` in a bucket, for any number of processes at once; its methods may be called
    from any thread, but `fetch` and what it returned belong to one.

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
        super().__init__(options)
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
        check_key(key)
        part = _read_part(stream, self.part_bytes)
        if len(part) < self.part_bytes:
            _compare_source(key, hashlib.sha256(part).hexdigest(), sha256)
            return self.put(key, part)
        try:
            return self._upload(key, part, stream, sha256)
        except UploadGone as gone:
            raise StoreUnavailable(
                f"{gone.message}; it is sent again later, look at the bucket's life-cycle rules if this lasts"
            ) from gone

    def get(self, ref: ArtifactRef) -> bytes:
        return b"".join(self._open(ref))

    def fetch(self, ref: ArtifactRef) -> Path:
        """A verified copy on this node, kept until the next `fetch`; one request at most."""
        check_key(ref.key)
        return self._cache.fetch(ref, self._open)

    def keys(self, prefix: str = "", older_than_s: float = 0.0) -> Iterator[str]:
        """One request for a thousand keys. What is no key of ours (a folder's marker) is left out. The bucket's time of
        an object is compared with this node's clock, as in `open_uploads`."""
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        for answer in self._pages("list_objects_v2", Prefix=self._prefix + prefix):
            for entry in answer.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                if KEY.fullmatch(key) and (not older_than_s or entry["LastModified"] < before):
                    yield key

    def delete(self, key: str) -> None:
        """Remove an object, and this node's copy of it; other nodes' copies go when they were not used for a day."""
        place = self._place(key)
        with self._errors.translated():
            self._client.delete_object(**place)
        self._cache.discard(key)

    def close(self) -> None:
        """Close the connections and unpin the last file."""
        self._client.close()
        self._cache.close()

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

    def _upload(self, key: str, part: bytes, stream: BinaryIO, sha256: str) -> ArtifactRef:
        """Send part after part and complete; on any failure the upload is aborted."""
        upload_id = self._begin(key, sha256)
        with contextlib.ExitStack() as undo:
            undo.callback(self._drop, key, upload_id)
            found, size, entries = self._send_all(key, upload_id, part, stream)
            _compare_source(key, found, sha256)
            ref = ArtifactRef(key=key, sha256=sha256, size=size)
            self._complete_surely(ref, upload_id, entries)
            undo.pop_all()
        return ref

    def _send_all(
        self, key: str, upload_id: str, part: bytes, stream: BinaryIO
    ) -> tuple[str, int, list[dict[str, Any]]]:
        """Digest and size of the whole stream, and what completing has to list."""
        whole, size = hashlib.sha256(), 0
        entries: list[dict[str, Any]] = []
        while part:
            whole.update(part)
            size += len(part)
            entries.append(self._send(key, upload_id, len(entries) + 1, part))
            part = b""  # give it back before the next one is read
            part = _read_part(stream, self.part_bytes)
        return whole.hexdigest(), size, entries

    def _complete_surely(self, ref: ArtifactRef, upload_id: str, entries: list[dict[str, Any]]) -> None:
        """A completion whose answer was lost is settled by looking at the object."""
        try:
            self._complete(ref.key, upload_id, entries)
        except (StoreUnavailable, UploadGone):
            if not self.holds(ref):
                raise

    def _drop(self, key: str, upload_id: str) -> None:
        """As far as the store lets us: the failure that led here is the one to tell."""
        with contextlib.suppress(StoreUnavailable):
            self.abort_upload(key, upload_id)


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
