"""AWS Signature Version 4 in a request's headers: reading what a client claims, and verifying it.

Sources: AWS IAM user guide, "Create a signed AWS API request"; botocore 1.44 (`SigV4Auth`) as recorded client. Any
region and service are accepted: the key pair is ours, and the signed Host header binds a request to this gateway.

A signature covers the body, and boto3 does not send the body's hash for SageMaker. So `read` and `check_time` need only
the head, and `matches` needs the whole request.
"""

from __future__ import annotations

import hmac
import re
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import quote

from msgspec import Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers

SCHEME = b"AWS4-HMAC-SHA256"
SKEW_S = 300
"""The allowed clock difference, as with AWS. A recorded request can be replayed for this long."""

_CREDENTIAL = re.compile(rb"([A-Za-z0-9_-]{4,128})/(\d{8})/([^/\s]{1,64})/([^/\s]{1,64})/aws4_request\Z")
_SIGNATURE = re.compile(rb"[0-9a-f]{64}\Z")
_DATE = re.compile(rb"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z\Z")
_REQUIRED = (b"host", b"x-amz-date")
_HASH_HEADER = b"x-amz-content-sha256"
# These headers choose the model, so they must be signed: a proxy must not be able to add one.
_MEANING = b"x-amzn-sagemaker-"


class Signature(Struct, frozen=True):
    """The content of an Authorization header of this scheme. scope is `date/region/service/aws4_request`; signed has
    the header names in order; date is `x-amz-date` as sent, and time is the same in Unix seconds."""

    access_key: str
    scope: bytes
    signed: tuple[bytes, ...]
    value: bytes
    date: bytes
    time: int


def read(headers: Headers) -> Signature | None:
    """The signature in `headers` (lower-case names); None if no Authorization header has this scheme.

    Raises GatewayError(UNAUTHENTICATED, code incomplete_signature) for an incomplete signature.
    """
    sent = [value for name, value in headers if name == b"authorization"]
    found = next((value for value in sent if value.split(b" ", 1)[0] == SCHEME), None)
    if found is None:
        return None
    if len(sent) > 1:
        raise _incomplete("the Authorization header was sent twice")
    fields = dict(part.strip().partition(b"=")[::2] for part in found[len(SCHEME) :].split(b","))
    credential = _CREDENTIAL.match(fields.get(b"Credential", b""))
    if credential is None:
        raise _incomplete("the Authorization header needs 'Credential=KEY/DATE/REGION/SERVICE/aws4_request'")
    signed = tuple(fields.get(b"SignedHeaders", b"").split(b";"))
    if any(name not in signed for name in _REQUIRED) or list(signed) != sorted({name.lower() for name in signed}):
        raise _incomplete("'SignedHeaders' must name host and x-amz-date, in lower case and in order")
    unsigned = next((name for name, _ in headers if name.startswith(_MEANING) and name not in signed), None)
    if unsigned is not None:
        raise _incomplete(f"'SignedHeaders' must name {unsigned.decode('latin-1')[:64]}")
    if not _SIGNATURE.match(fields.get(b"Signature", b"")):
        raise _incomplete("the Authorization header needs a 'Signature' of 64 hexadecimal digits")
    dates = [value for name, value in headers if name == b"x-amz-date"]
    time = _time(dates[0]) if len(dates) == 1 else None
    if time is None or dates[0][:8] != credential[2]:
        raise _incomplete("'X-Amz-Date' must be a time such as 20270131T120000Z, of the date in the credential")
    access_key = credential[1].decode()
    scope = fields[b"Credential"][len(access_key) + 1 :]
    return Signature(access_key, scope, signed, fields[b"Signature"], dates[0], time)


def _time(date: bytes) -> int | None:
    """Unix seconds of `YYYYMMDDTHHMMSSZ`, or None if it is not a time."""
    found = _DATE.match(date)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups())
    try:
        return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())
    except ValueError:
        return None


def check_time(signature: Signature, now: float) -> None:
    """Raises GatewayError(UNAUTHENTICATED, code signature_expired) if `now`, in Unix seconds, is too far away."""
    if abs(now - signature.time) > SKEW_S:
        what = "expired" if signature.time < now else "not yet current"
        raise GatewayError(
            Kind.UNAUTHENTICATED,
            f"Signature {what}: {signature.date.decode()} is more than {SKEW_S // 60} min from the gateway's time",
            code="signature_expired",
        )


def matches(
    signature: Signature, secret: str, method: str, path: bytes, query: bytes, headers: Headers, body: bytes
) -> bool:
    """True if `signature` was made with `secret` for exactly this request. path and query are raw, as on the wire."""
    payload = sha256(body).hexdigest().encode()
    hashes = [value for name, value in headers if name == _HASH_HEADER]
    # An unsigned hash proves nothing, and with UNSIGNED-PAYLOAD a proxy could change the body.
    if hashes and (hashes != [payload] or _HASH_HEADER not in signature.signed):
        return False
    canonical = canonical_request(method, path, query, headers, signature.signed, payload)
    to_sign = b"\n".join((SCHEME, signature.date, signature.scope, sha256(canonical).hexdigest().encode()))
    key = b"AWS4" + secret.encode()
    for part in signature.scope.split(b"/"):
        key = hmac.digest(key, part, "sha256")
    return hmac.compare_digest(hmac.digest(key, to_sign, "sha256").hex().encode(), signature.value)


def canonical_request(
    method: str, path: bytes, query: bytes, headers: Headers, signed: tuple[bytes, ...], payload: bytes
) -> bytes:
    """The text whose hash is signed. payload is the body's SHA-256 in hexadecimal."""
    values: dict[bytes, list[bytes]] = {name: [] for name in signed}
    for name, value in headers:
        if name in values:
            values[name].append(b" ".join(value.split()))
    pairs = sorted(pair.partition(b"=")[::2] for pair in query.split(b"&")) if query else []
    return b"\n".join(
        (
            method.encode(),
            # Encoded once more: all services but S3 sign the encoded path of the wire, so `%2F` becomes `%252F`. Dot
            # segments are kept, although clients remove them before signing: no route has any, so nobody can add them.
            quote(path, safe="/~").encode(),
            b"&".join(name + b"=" + value for name, value in pairs),
            *(name + b":" + b",".join(values[name]) for name in signed),
            b"",
            b";".join(signed),
            payload,
        )
    )


def mismatch() -> GatewayError:
    """The error for a wrong signature, with AWS's message."""
    return GatewayError(
        Kind.UNAUTHENTICATED,
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access"
        " Key and signing method.",
        code="signature_mismatch",
    )


def _incomplete(message: str) -> GatewayError:
    return GatewayError(Kind.UNAUTHENTICATED, message, code="incomplete_signature")
