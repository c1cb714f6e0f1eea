"""Why no connection to a worker came about, in the words of `core.failures`."""

from __future__ import annotations

import socket
import ssl

from gateway.core.errors import GatewayError, Kind
from gateway.core.failures import Cause

# OpenSSL's X509_V_ERR_...: not yet valid and expired; no issuer that is trusted; another host or address.
_VERIFY: dict[int, Cause] = {
    **dict.fromkeys((9, 10, 11, 12), Cause.CERTIFICATE_EXPIRED),
    **dict.fromkeys((2, 18, 19, 20, 21), Cause.CA_UNKNOWN),
    **dict.fromkeys((62, 63, 64), Cause.HOST_NOT_IN_CERTIFICATE),
}
_PLAIN = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "RECORD_LAYER_FAILURE",
                    "PACKET_LENGTH_TOO_LONG"})  # fmt: skip
"""OpenSSL's reasons for bytes that are not TLS."""


def cause_of_exception(error: BaseException) -> Cause:
    """Why no connection came about."""
    match error:
        case ssl.SSLCertVerificationError():
            return _VERIFY.get(error.verify_code, Cause.CERTIFICATE_INVALID)
        case ssl.SSLError():
            return Cause.NOT_TLS if error.reason in _PLAIN else Cause.TLS_FAILED
        case ConnectionRefusedError():
            return Cause.REFUSED
        case socket.gaierror() if error.errno == socket.EAI_AGAIN:
            return Cause.NAME_SERVER_SILENT
        case socket.gaierror() | UnicodeError():
            return Cause.NAME_UNKNOWN
        case TimeoutError():
            return Cause.CONNECT_TIMEOUT
        case ConnectionError():
            return Cause.BROKE_OFF
        case _:
            return Cause.UNREACHABLE


def not_connected(error: BaseException) -> GatewayError:
    """The error of a request for which no connection came about, for the reason `error`."""
    if isinstance(error, TimeoutError):
        late = "the worker did not accept a connection in time"
        return GatewayError(Kind.TIMEOUT, late, code="connect_timeout", cause=Cause.CONNECT_TIMEOUT)
    why = next((text for kind, text in _WHY.items() if isinstance(error, kind)), "the worker could not be reached")
    return GatewayError(Kind.UPSTREAM, why, cause=cause_of_exception(error))


_WHY = {
    ConnectionRefusedError: "the worker refused the connection",
    socket.gaierror: "the worker's name could not be resolved",
    UnicodeError: "the worker's name could not be resolved",
    ssl.SSLCertVerificationError: "the worker's certificate could not be verified",
    ssl.SSLError: "the worker and the gateway could not agree on TLS",
    ConnectionError: "the worker closed the connection while it was being set up",
}
"""The message for an error on the way to a connection. The first class that it belongs to counts."""
