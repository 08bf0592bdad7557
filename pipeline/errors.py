"""The error tree. The class decides what happens next; nothing is decided by a message's text.

    PagegateError
    ├── ConfigurationError   the caller must change something; nothing was begun          exit 2
    │   ├── ProfileMismatch, ContractMismatch, EngineUnavailable, NotFound
    ├── DocumentError        this source can never become a version; ends its submission
    │   ├── SourceMissing, SourceChanged, NotAPdf, NoPages, Encrypted, FileTooLarge, TooManyPages
    ├── PageError            counted against one page
    │   ├── retryable:  ParserCrashed, ParserTimeout, ParserMemory, OcrFailed, EncodeFailed, WorkerCrashed
    │   └── final:      PageBroken, PageSize, TextTooLarge, BadVectors, TooManyVectors
    ├── InfrastructureError  never counted, retried with backoff                           exit 3
    │   ├── StoreUnavailable, DiskFull, LedgerUnavailable, IndexUnavailable, BrokerUnavailable, RayUnavailable
    ├── MalformedMessage     a message that can never be taken: it goes to the dead letters with its reason
    ├── UploadGone           an upload by parts is no longer known to the object store
    ├── ArtifactLost         an object is gone or its digest differs: its row is reopened
    └── LeaseLost            the lease was taken over: stop, write nothing more

Every message says what happened, where, and what to do about it.
"""

from __future__ import annotations

from typing import Any, ClassVar


class PagegateError(Exception):
    """Base of all errors that Pagegate raises on purpose.

    Pickles as its message plus keyword-only options, so it survives a process boundary.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    counted: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context = context

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.context))


def _rebuild(kind: type[PagegateError], message: str, context: dict[str, Any]) -> PagegateError:
    return kind(message, **context)


class ConfigurationError(PagegateError):
    """The caller must change a setting or an argument; nothing was begun."""

    code = "configuration"
    exit_code = 2


class ProfileMismatch(ConfigurationError):
    """The settings' options differ from the profile in force."""

    code = "profile_mismatch"


class ContractMismatch(ConfigurationError):
    """The settings' encoder is not the one that the active build was made with."""

    code = "contract_mismatch"


class EngineUnavailable(ConfigurationError):
    """An engine that the settings name is not installed or has no models."""

    code = "engine_unavailable"


class NotFound(ConfigurationError):
    """There is no such document, version or submission of this org."""

    code = "not_found"


class DocumentError(PagegateError):
    """This source can never become a version."""

    code = "document"


class SourceMissing(DocumentError):
    code = "source_missing"


class SourceChanged(DocumentError):
    code = "source_changed"


class NotAPdf(DocumentError):
    code = "not_a_pdf"


class NoPages(DocumentError):
    code = "no_pages"


class Encrypted(DocumentError):
    code = "encrypted"


class FileTooLarge(DocumentError):
    code = "file_too_large"


class TooManyPages(DocumentError):
    code = "too_many_pages"


class PageError(PagegateError):
    """A failure of one page, counted against that page and no other."""

    code = "page"
    counted = True


class ParserCrashed(PageError):
    code = "parser_crashed"
    retryable = True


class ParserTimeout(PageError):
    code = "parser_timeout"
    retryable = True


class ParserMemory(PageError):
    code = "parser_memory"
    retryable = True


class PageBroken(PageError):
    """The parser refuses the page, and will again."""

    code = "page_broken"


class PageSize(PageError):
    code = "page_size"


class TextTooLarge(PageError):
    code = "text_too_large"


class OcrFailed(PageError):
    code = "ocr_failed"
    retryable = True


class EncodeFailed(PageError):
    code = "encode_failed"
    retryable = True


class BadVectors(PageError):
    """NaN or zero rows, no rows, or another dimension than the contract's."""

    code = "bad_vectors"


class TooManyVectors(PageError):
    """More numbers in one multivector than the index can hold (1,048,576 in Qdrant)."""

    code = "too_many_vectors"


class WorkerCrashed(PageError):
    """The worker died while it held this page alone."""

    code = "worker_crashed"
    retryable = True


class InfrastructureError(PagegateError):
    """Something we depend on does not answer. Never counted against a page."""

    code = "infrastructure"
    retryable = True
    exit_code = 3


class StoreUnavailable(InfrastructureError):
    code = "store_unavailable"


class DiskFull(InfrastructureError):
    code = "disk_full"


class LedgerUnavailable(InfrastructureError):
    code = "ledger_unavailable"


class IndexUnavailable(InfrastructureError):
    code = "index_unavailable"


class IndexBusy(IndexUnavailable):
    """The embedded index has another owner."""

    code = "index_busy"


class BrokerUnavailable(InfrastructureError):
    code = "broker_unavailable"


class RayUnavailable(InfrastructureError):
    code = "ray_unavailable"


class MalformedMessage(PagegateError):
    """A message that can never be taken. `context["reason"]` is a word for the dead letter's header."""

    code = "malformed_message"


class UploadGone(PagegateError):
    """The object store knows this upload no longer: completed, aborted or expired."""

    code = "upload_gone"


class ArtifactLost(PagegateError):
    """An object is not in the store, or its bytes do not have the recorded digest. `context["key"]` names it."""

    code = "artifact_lost"
    retryable = True


class LeaseLost(PagegateError):
    """Another worker has taken these rows over."""

    code = "lease_lost"
