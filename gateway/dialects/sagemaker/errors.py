"""SageMaker's errors on the paths that boto3 calls, as an answer and as a stream's last frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import Op
from gateway.dialects.sagemaker.headers import is_aws
from gateway.wire import awsevent
from gateway.wire.json import encode, encode_line
from gateway.wire.openai.replies import refusals

_INVALID = (Kind.BAD_REQUEST, Kind.UNSUPPORTED, Kind.NO_MODEL, Kind.CONTEXT_LENGTH)
AWS_ERRORS: Mapping[Kind, tuple[int, str]] = {
    **dict.fromkeys(_INVALID, (400, "ValidationError")),
    **dict.fromkeys((Kind.UNAUTHENTICATED, Kind.FORBIDDEN), (403, "AccessDeniedException")),
    Kind.NO_ROUTE: (404, "UnknownOperationException"),
    Kind.NO_METHOD: (405, "UnknownOperationException"),
    Kind.TOO_LARGE: (413, "ValidationError"),
    Kind.MEDIA_TYPE: (415, "ValidationError"),
    **dict.fromkeys((Kind.TIMEOUT, Kind.UPSTREAM, Kind.TRUNCATED), (424, "ModelError")),
    Kind.LIMITED: (429, "ThrottlingException"),
    Kind.QUOTA: (429, "ServiceQuotaExceededException"),
    Kind.CLIENT_GONE: (499, "InternalFailure"),
    Kind.INTERNAL: (500, "InternalFailure"),
    **dict.fromkeys((Kind.OVERLOADED, Kind.NO_WORKER, Kind.DRAINING), (503, "ServiceUnavailable")),
}
"""Kind -> (status, `x-amzn-ErrorType`) on the paths that boto3 calls. The other paths answer as OpenAI."""

# Code of an UNAUTHENTICATED error -> AWS's name for it.
SIGNATURE_ERRORS = {
    "incomplete_signature": (400, "IncompleteSignature"),
    "signature_expired": (403, "InvalidSignatureException"),
    "signature_mismatch": (403, "InvalidSignatureException"),
    "unknown_access_key": (403, "UnrecognizedClientException"),
}


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, the error's code). As boto3 expects it where boto3 calls: the body has no member for the code."""
    if request is None or not is_aws(request):
        return refusals.refusal(error)
    status, type_ = _aws_error(error, request)
    body: dict[str, Any] = {"message": error.message}
    if type_ == "ModelError":
        meaning = error.meaning
        hidden = meaning is not None and meaning.word == "account"  # the status is not the client's business
        original = (not hidden and error.upstream) or (504 if error.kind is Kind.TIMEOUT else 502)
        side = "client" if original < 500 else "server"
        body = {
            "Message": f'Received {side} error ({original}) from primary with message "{error.message}"',
            "OriginalStatusCode": original,
            "OriginalMessage": encode(refusals.error_object(error)).decode(),
            "LogStreamArn": "",
        }
    headers = [JSON_TYPE, (b"x-amzn-errortype", type_.encode())]
    if status in (429, 503) or error.kind is Kind.UPSTREAM:
        headers += refusals.error_headers(error, status)
        if error.retry_after is not None and error.kind is not Kind.UPSTREAM:
            headers.append((b"x-amz-retry-after", b"%d" % refusals.wait_ms(error)))
    return Response(status, headers, encode(body)), error.code or refusals.ERRORS[error.kind][2]


def _aws_error(error: GatewayError, request: Request) -> tuple[int, str]:
    """Status and AWS error type. A worker's own refusal is a ModelError, except if it is busy: boto3 may retry that."""
    if error.kind is Kind.UNAUTHENTICATED:
        if request.header(b"authorization") is None:
            return 403, "MissingAuthenticationTokenException"
        return SIGNATURE_ERRORS.get(error.code or "", AWS_ERRORS[error.kind])
    if error.kind is not Kind.OVERLOADED and (error.upstream is not None or error.blame is Blame.WORKER):
        return 424, "ModelError"
    return AWS_ERRORS[error.kind]


def _framed_exception(type_: str) -> Callable[[bytes], bytes]:
    return awsevent.framer(
        {":exception-type": type_, ":content-type": "application/json", ":message-type": "exception"}
    )


_model_stream_error = _framed_exception("ModelStreamError")
_internal_stream_failure = _framed_exception("InternalStreamFailure")


def exception(error: GatewayError) -> bytes:
    """The frame that ends a failed stream. boto3 raises its content as an exception."""
    if error.kind is Kind.TIMEOUT:
        return _model_stream_error(encode_line({"Message": error.message, "ErrorCode": "ModelInvocationTimeExceeded"}))
    if error.upstream is not None or error.blame is Blame.WORKER:
        return _model_stream_error(encode_line({"Message": error.message, "ErrorCode": "StreamBroken"}))
    return _internal_stream_failure(encode_line({"Message": error.message}))
