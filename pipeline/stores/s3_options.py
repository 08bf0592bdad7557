"""How to reach an S3 store. Apart from the store itself, so that settings do not load boto3."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from pipeline.stores.keys import KEY

MIB = 1 << 20


class S3Options(BaseModel):
    """Any S3 endpoint: AWS, OSS, MinIO, Ceph. No value of it is ever shown in an error: some are secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    bucket: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]$")]
    prefix: str = ""
    """Folder of the bucket that holds all keys, without a slash at its ends; empty for the whole bucket."""
    endpoint_url: str | None = None
    """Default: AWS, by region."""
    region: str | None = None
    """Default: what boto3 finds in its environment and files."""
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    """``path`` for MinIO and Ceph without a wildcard name; OSS takes ``virtual`` only."""
    checksums: Literal["when_supported", "when_required"] = "when_supported"
    """``when_supported``: the server checks the SHA-256 of each body sent. ``when_required``: for servers that
    refuse the header. What is read is checked by our own digest either way."""
    ca_bundle: Path | None = None
    """PEM file of the authority that signed the endpoint's certificate; default: the public ones."""
    connect_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    read_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """For the next bytes, not for the whole answer. 60 is boto3's default; completing a large upload is slow."""
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 5
    """Tries of one request, the first included, with boto3's adaptive backoff between them."""
    pool_connections: Annotated[int, Field(ge=1)] = 10
    """boto3's default."""
    part_bytes: Annotated[int, Field(ge=5 * MIB, le=512 * MIB)] = 16 * MIB
    """A longer stream is sent in parts of this size, in memory of about three of them. S3 takes no part below
    5 MiB but the last, and no more than 10,000: 16 MiB reach 156 GiB."""
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    """Default: boto3's own chain (environment, files, role of the node)."""
    cache_bytes: Annotated[int, Field(ge=0)] = 10_000_000_000
    """Local copies of sources. The copies at work stay, even where they are larger than this."""

    @field_validator("prefix")
    @classmethod
    def _prefix_is_a_key(cls, prefix: str) -> str:
        if prefix and not KEY.fullmatch(prefix):
            raise ValueError("use letters, digits and ._- between single slashes, none at the ends")
        return prefix

    @field_validator("endpoint_url")
    @classmethod
    def _endpoint_holds_no_secret(cls, endpoint_url: str | None) -> str | None:
        """It is named in errors and logs, so it must be fit to be shown."""
        parts = urlsplit(endpoint_url or "https://aws")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or "@" in parts.netloc:
            raise ValueError("use http(s)://host[:port], and access_key_id and secret_access_key for credentials")
        return endpoint_url

    @model_validator(mode="after")
    def _both_keys_or_none(self) -> S3Options:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("set both access_key_id and secret_access_key, or neither")
        return self
