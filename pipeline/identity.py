"""Stable ids, fingerprints and object keys: equal inputs give equal names, in every process and for ever."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

NAMESPACE = uuid.UUID("5f1f9c52-6f0e-5a3b-9a55-3c1d2d6a7e10")
"""Root of every UUIDv5 here. Drawn once; changing it would rename everything that exists."""


def document_id(org: str, source_uri: str, incarnation: int) -> str:
    return _uuid("document", org, source_uri, incarnation)


def version_id(document: str, sha256: str) -> str:
    return _uuid("version", document, sha256)


def build_id(contract_digest: str, ordinal: int) -> str:
    return _uuid("build", contract_digest, ordinal)


def point_id(build: str, version: str, page_index: int, fingerprint: str) -> str:
    return _uuid("point", build, version, page_index, fingerprint)


def notification_id(bucket: str, key: str, object_version: str, sequencer: str, etag: str) -> str:
    """Of the submission that a bucket's notification asks for: the same again when it is told again."""
    return _uuid("notification", bucket, key, object_version, sequencer, etag)


def digest(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of `value`: sorted keys, no spaces, UTF-8, no NaN."""
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def fingerprint(recipe: Mapping[str, Any]) -> str:
    """Name of one way to process one page: stage, code version, options, input digests (and build)."""
    return digest(recipe)


def source_key(document: str, version: str, sha256: str) -> str:
    return f"{document}/{version}/source/{sha256}.pdf"


def artifact_key(document: str, version: str, page_index: int, role: str, sha256: str, suffix: str) -> str:
    """Key of a page's artifact: ids and content digest only, so putting it again is always safe."""
    return f"{document}/{version}/{page_index:05d}/{role}/{sha256}{suffix}"


_ID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
OURS = re.compile(f"({_ID})/({_ID})/.+")
"""Keys as the two functions above make them; its groups are the ids of document and version. In a bucket that others
use too, nothing else is swept."""


def _uuid(kind: str, *parts: str | int) -> str:
    return str(uuid.uuid5(NAMESPACE, canonical([kind, *parts]).decode()))


def describe_changes(old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> str:
    """The options that differ, as ``render.dpi: 150 → 200``."""
    changes = [
        f"{stage}.{name}: {_value(old, stage, name)} → {_value(new, stage, name)}"
        for stage in sorted({*old, *new})
        for name in sorted({*old.get(stage, {}), *new.get(stage, {})})
        if _value(old, stage, name) != _value(new, stage, name)
    ]
    return ", ".join(changes)


def _value(options: Mapping[str, Mapping[str, Any]], stage: str, name: str) -> Any:
    return options.get(stage, {}).get(name, "absent")
