"""The one taxonomy of failure, shared by every dialect, backend and limit.

    GatewayError
      blame CLIENT  the request cannot be served; never counted against a worker
        BAD_REQUEST  UNSUPPORTED  MEDIA_TYPE  TOO_LARGE  CONTEXT_LENGTH
        UNAUTHENTICATED  FORBIDDEN  NO_ROUTE  NO_METHOD  NO_MODEL  LIMITED  QUOTA  CLIENT_GONE
      blame WORKER  something behind us failed; feeds the breaker
        UPSTREAM  TRUNCATED  TIMEOUT
      blame US      our own state or our own bug
        OVERLOADED  NO_WORKER  DRAINING  INTERNAL

A `Kind` says what happened; each dialect owns a table from `Kind` to its own status, type and code.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from enum import Enum

from gateway.core.failures import MEANINGS, Cause, Meaning


class Kind(Enum):
    """The kinds of failure. Closed: a dialect's error table must have a row for every member."""

    BAD_REQUEST = "invalid_request"
    UNSUPPORTED = "unsupported_parameter"
    UNAUTHENTICATED = "invalid_api_key"
    FORBIDDEN = "permission_denied"
    NO_ROUTE = "unknown_path"
    NO_METHOD = "method_not_allowed"
    NO_MODEL = "model_not_found"
    MEDIA_TYPE = "unsupported_media_type"
    TOO_LARGE = "request_too_large"
    CONTEXT_LENGTH = "context_length_exceeded"
    LIMITED = "rate_limit_exceeded"
    QUOTA = "insufficient_quota"
    OVERLOADED = "overloaded"
    NO_WORKER = "no_worker_available"
    DRAINING = "shutting_down"
    TIMEOUT = "timeout"
    UPSTREAM = "upstream_error"
    TRUNCATED = "upstream_truncated"
    CLIENT_GONE = "client_closed_request"
    INTERNAL = "internal_error"


class Blame(Enum):
    """Whose fault it was. Only WORKER feeds a breaker, and only if the failure's meaning says so (`failures`)."""

    CLIENT = "client"
    WORKER = "worker"
    US = "us"


_BLAME = {
    **dict.fromkeys((Kind.UPSTREAM, Kind.TRUNCATED, Kind.TIMEOUT), Blame.WORKER),
    **dict.fromkeys((Kind.OVERLOADED, Kind.NO_WORKER, Kind.DRAINING, Kind.INTERNAL), Blame.US),
}


class GatewayError(Exception):
    """A failure on its way to a client.

    kind         what happened
    message      one sentence for the caller; it never has a secret, a worker's address or a raw upstream page
    param        the invalid request field, dotted (`messages.0.content`), or None. It is vLLM's name, or the dialect's
                 own if vLLM has none; each dialect shows its caller the name that the caller knows
    code         a finer stable code than `kind.value`, or None
    retry_after  seconds until a retry makes sense, or None
    blame        see `Blame`; by default what `kind` implies
    upstream     the HTTP status that a worker answered with, or None
    value        the invalid value, for dialects whose errors echo it; or None
    broke        the connection to the worker broke after the request was sent
    flags        the engine's flags that its answer asks an operator for; they go to the log, never to the client
    retryable    False if no other worker may be tried although the blame is the worker's
    cause        why the worker failed, where that is known by more than `kind`; see `why`
    detail       the worker's own words, for the log alone
    absent       why the workers of a model of which none is ready are not, each cause once
    lacks        the feature that the worker's model turned out to lack, whatever the request
    final        no other model is asked in place of the one that failed
    """

    final: bool = False
    detail: str | None = None
    lacks: str | None = None
    absent: tuple[Cause, ...] = ()
    flags: tuple[str, ...] = ()

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        blame: Blame | None = None,
        upstream: int | None = None,
        value: object = None,
        retryable: bool = True,
        broke: bool = False,
        cause: Cause | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.blame = blame or _BLAME.get(kind, Blame.CLIENT)
        self.upstream = upstream
        self.value = value
        self.retryable = retryable
        self.broke = broke
        self.cause = cause

    @property
    def why(self) -> Cause | None:
        """Why the worker failed; None for what is not a worker's failure."""
        if self.cause is not None:
            return self.cause
        if self.kind is Kind.OVERLOADED:
            return Cause.OVERLOADED if self.upstream is not None else None
        if self.blame is not Blame.WORKER:
            return None
        if self.kind is Kind.TIMEOUT:
            return Cause.STALLED if self.code == "worker_stalled" else Cause.SILENT
        if self.broke or self.kind is Kind.TRUNCATED:
            return Cause.BROKE_OFF
        return Cause.FAILED if (self.upstream or 0) >= 500 else Cause.MALFORMED

    @property
    def meaning(self) -> Meaning | None:
        """The consequences of the worker's failure; None for what is not one."""
        cause = self.why
        return None if cause is None else MEANINGS[cause]

    def release_frames(self) -> None:
        """Clears the error's traceback. Its frames refer to the request, which may refer to the error: in such a cycle
        a refused body would stay in memory until the garbage collector runs."""
        self.__traceback__ = self.__context__ = self.__cause__ = None

    def __repr__(self) -> str:
        return f"GatewayError({self.kind.name}, {self.message!r}, param={self.param!r}, upstream={self.upstream!r})"


class Busy(GatewayError):
    """The model has no room for the request now. Answered by 429; the client should retry after `retry_after`
    seconds."""

    def __init__(self, message: str, code: str, retry_after: float) -> None:
        super().__init__(Kind.LIMITED, message, code=code, retry_after=retry_after)


class GuardRefusal(GatewayError):
    """A guard of the operator's refuses a request, or a reply."""

    def __init__(self, reason: str) -> None:
        super().__init__(Kind.BAD_REQUEST, reason, code="content_filter", blame=Blame.US)


def out_of_descriptors(error: BaseException | None) -> bool:
    """True if `error` or one of its causes says that this process or machine has no file descriptor left. That is never
    the fault of the peer."""
    return any(isinstance(one, OSError) and one.errno in (errno.EMFILE, errno.ENFILE) for one in causes(error))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error`, and what it was raised from, one after the other."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        yield error
        visited.add(id(error))
        error = error.__cause__ or error.__context__


def reply_too_large() -> GatewayError:
    """The error for a worker's answer above the size limit. Not retryable: another worker's would be as large."""
    message = "the worker's answer is larger than allowed"
    return GatewayError(Kind.UPSTREAM, message, code="upstream_too_large", retryable=False)


def prompt_too_long(param: str, tokens: int, context: int) -> GatewayError:
    """The error for a prompt, the field `param`, with more tokens than the model's context leaves room for."""
    message = f"the prompt has {tokens} tokens; this model's context is {context}"
    return GatewayError(Kind.CONTEXT_LENGTH, message, param=param)
