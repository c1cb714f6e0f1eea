"""Errors of the dialect `sagemaker`, in both shapes and as frames; and that its page names them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Headers
from gateway.dialects.sagemaker.errors import AWS_ERRORS, SIGNATURE_ERRORS
from gateway.dialects.sagemaker.fields import FIELDS
from tests.repo.tree import ROOT
from tests.support.eventstream import frames
from tests.unit.dialects.asking import HI
from tests.unit.dialects.sagemaker.exchange import DIALECT, ENDPOINT, RAW, STREAM, lane, request


def refused(error: GatewayError, route: str, headers: Headers | None = None) -> tuple[int, dict[bytes, bytes], Any]:
    response = DIALECT.refuse(error, request({}, route, headers), None)[0]
    return response.status, dict(response.headers), json.loads(response.body)


def test_both_error_tables_are_total() -> None:
    assert set(AWS_ERRORS) == set(DIALECT.errors) == set(Kind)
    for kind in Kind:
        status, headers, body = refused(GatewayError(kind, "what"), ENDPOINT)
        assert (status, b"x-amzn-errortype" in headers) == (status, True)
        assert "what" in (body.get("message") or body["Message"])
        status, headers, body = refused(GatewayError(kind, "what"), RAW)
        assert body["error"]["message"] == "what"
        assert b"x-amzn-errortype" not in headers


@pytest.mark.parametrize(
    ("error", "status", "type_"),
    [
        (GatewayError(Kind.BAD_REQUEST, "m"), 400, "ValidationError"),
        (GatewayError(Kind.UNAUTHENTICATED, "m"), 403, "MissingAuthenticationTokenException"),
        (GatewayError(Kind.OVERLOADED, "m", upstream=429), 503, "ServiceUnavailable"),
        *((GatewayError(kind, "m"), *AWS_ERRORS[kind]) for kind in (Kind.LIMITED, Kind.NO_WORKER, Kind.INTERNAL)),
    ],
)
@pytest.mark.parametrize("route", [ENDPOINT, STREAM])
def test_errors_of_the_gateway_as_aws_shapes_them(error: GatewayError, status: int, type_: str, route: str) -> None:
    found, headers, body = refused(error, route)
    assert (found, headers[b"x-amzn-errortype"].decode(), body) == (status, type_, {"message": "m"})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GatewayError(Kind.BAD_REQUEST, "m", upstream=422), 422),
        (GatewayError(Kind.CONTEXT_LENGTH, "m", upstream=400), 400),
        (GatewayError(Kind.UPSTREAM, "m", upstream=500), 500),
        (GatewayError(Kind.UPSTREAM, "m"), 502),
        (GatewayError(Kind.TRUNCATED, "m"), 502),
        (GatewayError(Kind.TIMEOUT, "m"), 504),
        (GatewayError(Kind.TIMEOUT, "m", blame=Blame.US), 504),
    ],
)
def test_errors_of_the_model(error: GatewayError, status: int) -> None:
    found, headers, body = refused(error, ENDPOINT)
    side = "client" if status < 500 else "server"
    assert (found, headers[b"x-amzn-errortype"]) == (424, b"ModelError")
    assert list(body) == ["Message", "OriginalStatusCode", "OriginalMessage", "LogStreamArn"]
    assert body["Message"] == f'Received {side} error ({status}) from primary with message "m"'
    assert body["OriginalStatusCode"] == status
    assert json.loads(body["OriginalMessage"])["error"]["message"] == "m"


@pytest.mark.parametrize(
    ("code", "status", "type_"),
    [(None, 403, "AccessDeniedException"), *((code, *told) for code, told in SIGNATURE_ERRORS.items())],
)
def test_errors_of_who_is_calling(code: str | None, status: int, type_: str) -> None:
    error = GatewayError(Kind.UNAUTHENTICATED, "m", code=code)
    found, headers, _ = refused(error, ENDPOINT, [(b"authorization", b"x")])
    assert (found, headers[b"x-amzn-errortype"].decode()) == (status, type_)
    assert refused(error, RAW)[0] == 401


def test_how_long_to_wait() -> None:
    error = GatewayError(Kind.LIMITED, "m", retry_after=1.5)
    _, headers, _ = refused(error, ENDPOINT)
    assert (headers[b"x-amz-retry-after"], headers[b"retry-after"]) == (b"1500", b"2")
    _, headers, _ = refused(GatewayError(Kind.LIMITED, "m", retry_after=0.0124), ENDPOINT)
    assert headers[b"x-amz-retry-after"] == b"13"
    _, headers, _ = refused(GatewayError(Kind.LIMITED, "m"), ENDPOINT)
    assert b"x-amz-retry-after" not in headers
    _, headers, _ = refused(GatewayError(Kind.UPSTREAM, "m", retry_after=1.5), ENDPOINT)
    assert b"x-amz-retry-after" not in headers
    _, headers, _ = refused(error, RAW)
    assert (headers.get(b"x-amz-retry-after"), headers[b"retry-after"]) == (None, b"2")


@pytest.mark.parametrize(
    ("error", "type_", "payload"),
    [
        (
            GatewayError(Kind.TIMEOUT, "late", blame=Blame.US),
            "ModelStreamError",
            {"Message": "late", "ErrorCode": "ModelInvocationTimeExceeded"},
        ),
        (
            GatewayError(Kind.UPSTREAM, "broke"),
            "ModelStreamError",
            {"Message": "broke", "ErrorCode": "StreamBroken"},
        ),
        (GatewayError(Kind.DRAINING, "bye"), "InternalStreamFailure", {"Message": "bye"}),
        (GatewayError(Kind.INTERNAL, "bug"), "InternalStreamFailure", {"Message": "bug"}),
    ],
)
def test_exception_frames(error: GatewayError, type_: str, payload: dict[str, str]) -> None:
    (frame,) = frames(lane({"messages": HI}, STREAM).fail(error))
    assert frame.headers == {
        ":exception-type": type_,
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    assert json.loads(frame.payload) == payload


def test_the_page_names_every_field_and_every_error() -> None:
    page = (ROOT / "docs" / "dialects" / "sagemaker.md").read_text()
    request, errors = page.split("## Request")[1].split("## Reply")[0], page.split("## Errors")[1]
    for field in {field.name for fields in FIELDS.values() for field in fields}:
        assert f"`{field}`" in request
    for type_ in {type_ for _, type_ in (*AWS_ERRORS.values(), *SIGNATURE_ERRORS.values())}:
        assert f"`{type_}`" in errors
