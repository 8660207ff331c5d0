"""The errors that Pagewire names, and the one table that says what each means outside.

    PagewireError
    |- InvalidRequest            the caller's fault, names the field and the bound
    |  |- ContextTooLong         prompt and answer are more than the model takes
    |  |- UnknownModel
    |  |- UnsupportedField
    |  |- UnsupportedEncoding
    |  |- UnknownPod
    |- Unauthenticated
    |- Forbidden                 known, and not allowed to
    |- Overloaded                try later; carries `retry_after_s`
    |- Unavailable               nobody can serve it now
    |  |- Draining
    |  |- PodLost                a pod went away with the request
    |  |- RouterLost             a client lost the router that had its request
    |  |- HandedOver             a pod gave the request to another, its KV is still there
    |- DeadlineExceeded
    |- Cancelled
    |- RoleRefused               a pod cannot take the role it is told to, or not now
    |- PeerMismatch              two processes that must not be paired
    |- TransferFailed            KV did not arrive; never reaches a client, D completes what landed
    |  |- PrefillLost            the pod that shipped is gone
    |  |- StreamLost             the stream of its bytes broke
    |  |- TransferTimeout        its time was over
    |  |- LeaseExpired           the taker showed no sign of life
    |  |- BlockCorrupt           a block arrived corrupt twice
    |  |- ContractBroken         a peer said what no peer of ours says
    |- EngineFailed
       |- Poisoned               this request broke a step

Every error carries a machine-readable `cause`. A cause crosses process borders as text and comes back as the
same class (`from_cause`); an unknown cause comes back as `EngineFailed`, never as success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class PagewireError(Exception):
    """Root of the tree; `cause` is the machine-readable name, the text is for people.

    `request_id` is set by whoever knows which request it ended, "" until then.
    """

    cause: ClassVar[str] = "internal"

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.request_id = ""


class InvalidRequest(PagewireError):
    """A parameter is wrong: `field` names it, the message states the bound."""

    cause = "invalid_request"

    def __init__(self, message: str, *, field: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.field = field


class ContextTooLong(InvalidRequest):
    """Prompt and answer are more than the model takes; known to clients by OpenAI's name, or by its words."""

    cause = "context_length_exceeded"

    def __init__(self, message: str, *, field: str = "", max_tokens: int = 0, retry_after_s: float = 0.0) -> None:
        said = f"This model's maximum context length is {max_tokens} tokens: {message}" if max_tokens else message
        super().__init__(said, field=field, retry_after_s=retry_after_s)


class UnknownModel(InvalidRequest):
    """No pod serves the model that the request names."""

    cause = "model_not_found"


class UnsupportedField(InvalidRequest):
    """A field that we know and do not honour."""

    cause = "unsupported_field"


class UnsupportedEncoding(InvalidRequest):
    """The request came compressed, or otherwise coded as we do not read it."""

    cause = "unsupported_encoding"


class UnknownPod(InvalidRequest):
    """No pod of that name is linked."""

    cause = "pod_not_found"


class Unauthenticated(PagewireError):
    """A missing or wrong credential."""

    cause = "unauthenticated"


class Forbidden(PagewireError):
    """Whoever asks is known, and has no right to this."""

    cause = "forbidden"


class Overloaded(PagewireError):
    """No room now; `retry_after_s` says when it may be worth another try."""

    cause = "overloaded"


class Unavailable(PagewireError):
    """No pod that could serve the request is there."""

    cause = "unavailable"


class Draining(Unavailable):
    """The process is going away and admits nothing new."""

    cause = "draining"


class PodLost(Unavailable):
    """The pod that held the request went away and nobody could take over."""

    cause = "pod_lost"


class RouterLost(Unavailable):
    """The router cannot be reached, or went away with the request. Clients find this out; no router says it."""

    cause = "router_lost"


class HandedOver(Unavailable):
    """The pod goes away and stopped the request; its KV can be fetched there for a while."""

    cause = "handed_over"


class DeadlineExceeded(PagewireError):
    """The request's deadline passed."""

    cause = "deadline_exceeded"


class Cancelled(PagewireError):
    """The client, or the router on its behalf, gave the request up."""

    cause = "cancelled"


class RoleRefused(PagewireError):
    """A pod cannot take the role that it is told to, or not now; it goes on as it was."""

    cause = "role_refused"


class PeerMismatch(PagewireError):
    """Two processes disagree on what must be equal; the message is the diff."""

    cause = "peer_mismatch"


class TransferFailed(PagewireError):
    """A shipment did not arrive; the classes below say why."""

    cause = "transfer_failed"


class PrefillLost(TransferFailed):
    """The pod that shipped, or the link to it, is gone."""

    cause = "prefill_lost"


class StreamLost(TransferFailed):
    """The stream of bytes broke while the link stood."""

    cause = "stream_lost"


class TransferTimeout(TransferFailed):
    """The blocks were not all here in time."""

    cause = "transfer_timeout"


class LeaseExpired(TransferFailed):
    """The pod that was to take the blocks showed no sign of life for the length of its lease."""

    cause = "lease_expired"


class BlockCorrupt(TransferFailed):
    """A block arrived other than it was sent, and so did its second copy."""

    cause = "block_corrupt"


class ContractBroken(TransferFailed):
    """The peer announced or sent what does not fit what was agreed."""

    cause = "contract_broken"


class EngineFailed(PagewireError):
    """The engine process broke."""

    cause = "internal"


class Poisoned(EngineFailed):
    """This request broke a step of the engine."""

    cause = "poisoned"


@dataclass(frozen=True, slots=True)
class Status:
    """What an error is called outside: gRPC status name, HTTP status, whether another try can help."""

    grpc: str
    http: int
    retryable: bool


STATUS_OF: dict[type[PagewireError], Status] = {
    InvalidRequest: Status("INVALID_ARGUMENT", 400, False),
    ContextTooLong: Status("INVALID_ARGUMENT", 400, False),
    UnknownModel: Status("NOT_FOUND", 404, False),
    UnsupportedField: Status("INVALID_ARGUMENT", 400, False),
    UnsupportedEncoding: Status("UNIMPLEMENTED", 415, False),
    UnknownPod: Status("NOT_FOUND", 404, False),
    Unauthenticated: Status("UNAUTHENTICATED", 401, False),
    Forbidden: Status("PERMISSION_DENIED", 403, False),
    Overloaded: Status("RESOURCE_EXHAUSTED", 429, True),
    Unavailable: Status("UNAVAILABLE", 503, True),
    Draining: Status("UNAVAILABLE", 503, True),
    PodLost: Status("UNAVAILABLE", 503, True),
    RouterLost: Status("UNAVAILABLE", 503, True),
    HandedOver: Status("UNAVAILABLE", 503, True),
    DeadlineExceeded: Status("DEADLINE_EXCEEDED", 504, False),
    Cancelled: Status("CANCELLED", 499, False),
    RoleRefused: Status("FAILED_PRECONDITION", 409, False),
    PeerMismatch: Status("FAILED_PRECONDITION", 500, False),
    TransferFailed: Status("INTERNAL", 500, True),
    PrefillLost: Status("INTERNAL", 500, True),
    StreamLost: Status("INTERNAL", 500, True),
    TransferTimeout: Status("INTERNAL", 500, True),
    LeaseExpired: Status("INTERNAL", 500, True),
    BlockCorrupt: Status("INTERNAL", 500, True),
    ContractBroken: Status("INTERNAL", 500, True),
    EngineFailed: Status("INTERNAL", 500, False),
    Poisoned: Status("INTERNAL", 500, False),
}

BY_CAUSE = {error.cause: error for error in STATUS_OF}


def status_of(error: PagewireError) -> Status:
    """Return the row of the table for `error`: its class's, or that of the nearest class above."""
    return next((STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF), STATUS_OF[EngineFailed])


def named(error: Exception) -> PagewireError:
    """Return what a caller is told of `error`: itself where it has a name, and little where nobody foresaw it."""
    if isinstance(error, PagewireError):
        return error
    if isinstance(error, MemoryError):
        return Unavailable("this process has no memory left", retry_after_s=1.0)
    return EngineFailed("internal error")


def from_cause(cause: str, message: str, *, field: str = "", retry_after_s: float = 0.0) -> PagewireError:
    """Rebuild an error that crossed a process border."""
    error = BY_CAUSE.get(cause)
    if error is None:
        return EngineFailed(f"{cause}: {message}")
    if issubclass(error, InvalidRequest):
        return error(message, field=field, retry_after_s=retry_after_s)
    return error(message, retry_after_s=retry_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """A `PagewireError` as a value."""

    cause: str
    message: str
    field: str = ""
    retry_after_s: float = 0.0

    @classmethod
    def of(cls, error: PagewireError) -> ErrorInfo:
        """Describe `error`."""
        field = error.field if isinstance(error, InvalidRequest) else ""
        return cls(cause=error.cause, message=error.message, field=field, retry_after_s=error.retry_after_s)

    def error(self) -> PagewireError:
        """Return the error that this describes."""
        return from_cause(self.cause, self.message, field=self.field, retry_after_s=self.retry_after_s)
