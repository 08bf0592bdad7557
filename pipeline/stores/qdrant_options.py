"""How to reach a Qdrant server and how to use it; imports no client, so that settings stay light."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FilePath, SecretStr, model_validator


def _is_plain(url: str) -> str:
    """A password in a URL would end up in messages; `api_key` is the place for it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://HOST or https://HOST")
    if parts.username or parts.password or parts.query or parts.fragment or parts.path.strip("/"):
        raise ValueError("must have nothing but scheme, host and port; the key belongs in api_key")
    return url


class QdrantOptions(BaseModel):
    """A server or cluster. Only gRPC is spoken; the URL's scheme says whether with TLS, its port is not used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, AfterValidator(_is_plain)]
    """``http://HOST`` or ``https://HOST``."""
    grpc_port: Annotated[int, Field(ge=1, le=65535)] = 6334
    """Qdrant's default."""
    api_key: SecretStr | None = None
    ca_file: FilePath | None = None
    """PEM with the authorities that sign the server's certificate; without it, those that gRPC ships."""
    cert_file: FilePath | None = None
    """PEM with this client's certificate chain, where the server asks for one; `key_file` is its private key."""
    key_file: FilePath | None = None
    timeout_s: Annotated[int, Field(ge=1)] = 30
    """Of one call; whole seconds, as the client has it. Its own default of 5 is short for a write while the server
    optimises (qdrant/qdrant#1822, #3388)."""
    request_bytes: Annotated[int, Field(ge=1, le=24 * 1024**2)] = 5_000_000
    """Most of one write, a single larger page excepted. Qdrant's FAQ advises batches below 5 MB; 24 MiB leaves
    room below the 32 MiB at which a server's default refuses."""
    shard_number: Annotated[int, Field(ge=1)] | None = None
    """Of new collections; without it the server decides (one a node)."""
    replication_factor: Annotated[int, Field(ge=1)] | None = None
    """Of new collections; without it the server decides (1: a lost node loses points)."""
    prefetch_factor: Annotated[int, Field(ge=1, le=100)] = 4
    """Candidates that the graph of pooled vectors has to find for each page that is asked for. Each is read from
    disk to be scored again."""

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together: set both or neither")
        return self

    @property
    def host(self) -> str:
        return str(urlsplit(self.url).hostname)

    @property
    def tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def address(self) -> str:
        """What messages say."""
        return f"{self.host}:{self.grpc_port}"
