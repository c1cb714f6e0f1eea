"""The error for an answer with any status but 200, and the wait that the answer asks for."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from gateway.core.errors import GatewayError
from gateway.core.http import Response
from gateway.wire.openai.replies import views as wire

LONGEST_WAIT_S = 3600.0
"""The longest wait that is taken from a worker; longer ones are cut to this."""


def fault_of(response: Response, now: float) -> GatewayError:
    """The error for `response`. `now` is in Unix seconds: `Retry-After` may be a date."""
    return with_wait(wire.fault(response.status, response.body), response, now)


def with_wait(error: GatewayError, response: Response, now: float) -> GatewayError:
    """`error` with the wait that `response` asks for, if the error is one that waiting can help."""
    if error.retry_after is not None:
        error.retry_after = retry_after(response, now) or error.retry_after
    return error


def retry_after(response: Response, now: float) -> float | None:
    """The seconds that `Retry-After` asks for (RFC 9110 10.2.3), at most `LONGEST_WAIT_S`; None without one."""
    value = response.header(b"retry-after")
    if value is None:
        return None
    value = value.strip()
    if value.isdigit():
        # More than nine digits are beyond the limit anyway, and very long numbers do not fit a float.
        return min(float(value), LONGEST_WAIT_S) if len(value) <= 9 else LONGEST_WAIT_S
    if len(value) > 40:
        return None
    try:
        wait = parsedate_to_datetime(value.decode("ascii")).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return min(max(wait, 0.0), LONGEST_WAIT_S)


def counted(value: bytes | None) -> int | None:
    """A number of tokens from a header; None if the header is absent or invalid."""
    if value is None or not value.isdigit() or len(value) > 9:
        return None
    return int(value)
