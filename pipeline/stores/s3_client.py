"""A boto3 client, as the options of a store describe it, and its listings."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import boto3
from botocore.config import Config

from pipeline.errors import ConfigurationError
from pipeline.stores.s3_errors import S3Errors
from pipeline.stores.s3_options import S3Options


def connect(options: S3Options) -> Any:
    """A client of its own session, safe for threads; it asks nothing yet.

    Raises `ConfigurationError` if the CA file is absent.
    """
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


def pages(client: Any, errors: S3Errors, operation: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
    """Answer after answer of a listing, each one asked for when it is wanted."""
    answers = iter(client.get_paginator(operation).paginate(**arguments))
    while True:
        with errors.translated():
            answer = next(answers, None)
        if answer is None:
            return
        yield answer
