"""Why a call to the store failed, in words for a log line."""

from __future__ import annotations

import os
import ssl

from gateway.redis import Refused


class Unsent(Exception):
    """The call never reached the server."""


def describe(error: BaseException, timeout: float) -> str:
    """For a log line: what kind of failure, without addresses or secrets."""
    unsent = isinstance(error, Unsent)
    if unsent and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, TimeoutError) and not error.errno:
        return "no connection in time" if unsent else f"no answer within {timeout * 1000:.0f} ms"
    if isinstance(error, Refused):
        text = str(error)[:100]
        # A text with a digit may contain an address.
        return text.partition(" ")[0] if any(map(str.isdigit, text)) else text
    # redis-py raises an error of its own in place of the socket's, which is then the context.
    met = error if isinstance(error, OSError) and error.errno else error.__context__
    kind = "ConnectionError" if isinstance(error, OSError) else type(error).__name__
    if isinstance(met, ssl.SSLCertVerificationError):
        return f"{kind} ({met.verify_message.partition(',')[0]})"  # a name or an address follows
    if isinstance(met, ssl.SSLError):  # whose number is not the system's
        return f"{kind} ({(met.reason or 'TLS').replace('_', ' ').lower()})"
    if isinstance(met, OSError) and met.errno:
        # Its own words hold the address, but for those of a name that is not found (which has a negative number).
        return f"{kind} ({os.strerror(met.errno) if met.errno > 0 else met.strerror})"
    return kind
