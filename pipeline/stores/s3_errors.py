"""boto3's errors become ours here, and nowhere else. No message repeats what a server said: it could hold a secret."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    SSLError,
)
from urllib3.exceptions import HTTPError

from pipeline.errors import ArtifactLost, PagegateError, StoreUnavailable, UploadGone

ABSENT = ("NoSuchKey", "404")
"""What a GET and a HEAD say of an object that is not there. NoSuchBucket and NO_UPLOAD are other things."""

NO_UPLOAD = "NoSuchUpload"
"""Completed, aborted or expired: S3 does not say which."""

CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)

RIGHTS = "let these credentials read, write, list and delete in the bucket, and list and abort uploads by parts"

ADVICE = {
    "NoSuchBucket": "create the bucket or correct its name",
    "AccessDenied": RIGHTS,
    "403": RIGHTS,
    "InvalidAccessKeyId": "correct the credentials",
    "SignatureDoesNotMatch": "correct the credentials, the region and the node's clock",
    "RequestTimeTooSkewed": "correct the node's clock",
    "ExpiredToken": "renew the credentials",
    "InvalidToken": "renew the credentials",
    "PermanentRedirect": "correct region or endpoint_url",
    "AuthorizationHeaderMalformed": "correct the region",
    "SecondLevelDomainForbidden": "set addressing_style: virtual",
    "NotImplemented": "set checksums: when_required",
}
"""By S3 error code. SecondLevelDomainForbidden is OSS's answer to a path-style address."""


class S3Errors:
    """Names the endpoint and the bucket in every error."""

    def __init__(self, endpoint: str, bucket: str) -> None:
        self._where = f"bucket {bucket} at {endpoint}"

    @contextlib.contextmanager
    def translated(self, key: str | None = None) -> Iterator[None]:
        """Around every call. `key` names an object that has to be there: without it the artifact is lost."""
        try:
            yield
        except ParamValidationError:
            raise  # our own mistake, not the store's
        except ClientError as error:
            raise self._answered(error, key) from error
        except (BotoCoreError, HTTPError) as error:
            raise StoreUnavailable(
                f"the object store failed, {self._where}: {type(error).__name__}; {_advice(error)}"
            ) from error

    def _answered(self, error: ClientError, key: str | None) -> PagegateError:
        code = str(error.response.get("Error", {}).get("Code", "unknown"))
        if key is not None and code in ABSENT:
            return ArtifactLost(f"{key} is not in {self._where}: its stage has to run again", key=key)
        if code == NO_UPLOAD:
            return UploadGone(f"an upload by parts is not known to {self._where}: completed, aborted or expired")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "no status")
        advice = ADVICE.get(code, "it is asked again later; look at the store if this lasts")
        return StoreUnavailable(f"the object store failed, {self._where}: {code} ({status}); {advice}")


def _advice(error: Exception) -> str:
    if isinstance(error, CREDENTIALS):
        return "give credentials: access_key_id and secret_access_key, or one of the ways that boto3 knows"
    if isinstance(error, SSLError):
        return "set ca_bundle to the authority of the endpoint's certificate"
    if isinstance(error, (ConnectionError, HTTPClientError, HTTPError)):
        return "it is asked again later; check endpoint_url, the network and the store if this lasts"
    return "check the options of the store and boto3's configuration"
