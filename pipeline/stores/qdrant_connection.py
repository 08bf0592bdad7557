"""A connection to a Qdrant server, and what its errors mean."""

from __future__ import annotations

import grpc
from qdrant_client import QdrantClient

from pipeline.stores.qdrant_options import QdrantOptions

TOO_LARGE = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE)
"""What a refused size looks like: the first from gRPC's own code, the second from tonic, which Qdrant is built on."""

CHANNEL = {
    "grpc.max_receive_message_length": 32 * 1024**2,
    "grpc.initial_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": 5_000,
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
}
"""A server that is back is found within seconds (gRPC's default: up to two minutes), and a peer that vanished
without a word is noticed during a call. An answer may hold four of the largest pages, `pooled` included."""


def connect(options: QdrantOptions) -> QdrantClient:
    """No call is made yet. gRPC only, so the client's check of the server's version, over REST, is left out."""
    certificates = {
        name: path.read_bytes()
        for name, path in (
            ("root_certificates", options.ca_file),
            ("certificate_chain", options.cert_file),
            ("private_key", options.key_file),
        )
        if path is not None
    }
    return QdrantClient(
        url=options.url,
        grpc_port=options.grpc_port,
        prefer_grpc=True,
        api_key=options.api_key.get_secret_value() if options.api_key else None,
        timeout=options.timeout_s,
        pool_size=1,
        grpc_options={**CHANNEL, **certificates},
        check_compatibility=False,
    )


def is_too_large(error: BaseException | None) -> bool:
    """Whether the server, or this end of the channel, refused the size of a message."""
    return isinstance(error, grpc.RpcError) and error.code() in TOO_LARGE


def explain(error: grpc.RpcError, options: QdrantOptions) -> str:
    """What happened, where, and what to do about it; without the key, which gRPC keeps out of its errors."""
    code = error.code()
    advice = {
        grpc.StatusCode.UNAVAILABLE: "check that it runs, and url and grpc_port",
        grpc.StatusCode.DEADLINE_EXCEEDED: f"no answer in {options.timeout_s} s: look at its load, or raise timeout_s",
        grpc.StatusCode.UNAUTHENTICATED: "set api_key",
        grpc.StatusCode.PERMISSION_DENIED: "give it an api_key that may read and write",
        grpc.StatusCode.NOT_FOUND: "the collection is gone: the next write makes it again, empty",
        **dict.fromkeys(TOO_LARGE, "it takes less than one page at once: raise its request limit"),
    }.get(code, "look into its log")
    return f"Qdrant at {options.address} failed with {code.name} ({error.details()}): {advice}"
