"""What a point says of its page: written by `index`, read back by the gate, compared by `fsck`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.domain import IndexBuild


def payload_of(
    *,
    org: str,
    document_id: str,
    version_id: str,
    page_index: int,
    page_label: str,
    build: IndexBuild,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """All but the live hint, which changes. `about` is that of `DocumentMetadata.about`."""
    return {
        "org": org,
        "document_id": document_id,
        "version_id": version_id,
        "page_index": page_index,
        "page_label": page_label,
        "build": build.id,
        "contract": build.contract_digest,
        **about,
    }
