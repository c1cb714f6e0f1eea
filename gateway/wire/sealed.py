"""Texts that a client stores for the gateway and sends back: encrypted and authenticated, for one caller.

The cipher is AES-SIV (RFC 5297). Its key is derived (HKDF, RFC 5869) from the caller's credentials. So nothing is
stored, every gateway can open what another one sealed, and no other caller can read it. Only the gateway's own keys are
known to be random enough for that. Any other credential is mixed with a secret of this process, so that a leaked text
does not help to guess a password.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.core.http import Headers

_MARK = "dgs1."
_KEY_BYTES = 64
_OWN = secrets.token_bytes(32)
_KEY_HEADERS = (b"authorization", b"api-key", b"x-api-key")
_BEARER = re.compile(rb"bearer[: \t]+", re.IGNORECASE)
# A signature differs in every request; the part before the slash is the key's id.
_SIGNED = re.compile(rb"AWS4-HMAC-SHA256\s+Credential=([^/,\s]+)")
# A key of ours has 256 random bits.
_STRONG = re.compile(rb"dgm_[0-9a-z]{4,32}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}\Z")


class Seal:
    """Seals and opens texts of the caller with these request headers. use: the purpose; a text that was sealed for one
    purpose is not opened for another."""

    def __init__(self, headers: Headers, use: bytes) -> None:
        self._caller = _caller(headers)
        self._use = use
        self._cipher: AESSIV | None = None

    def close(self, text: str) -> str:
        """`text`, sealed. Equal texts give equal results."""
        sealed = self._keyed().encrypt(text.encode("utf-8", "surrogatepass") + b"\0", [self._use])
        return _MARK + urlsafe_b64encode(sealed).decode()

    def open(self, sealed: str) -> str | None:
        """The text, or None if it was not sealed here for this caller."""
        if not sealed.startswith(_MARK):
            return None
        try:
            found = b64decode(sealed.removeprefix(_MARK), b"-_", validate=True)
            return self._keyed().decrypt(found, [self._use])[:-1].decode()
        except (InvalidTag, Base64Error, ValueError):
            return None

    def _keyed(self) -> AESSIV:
        if self._cipher is None:
            salt = None if _STRONG.match(self._caller) else _OWN
            self._cipher = AESSIV(HKDF(SHA256(), _KEY_BYTES, salt, b"dragoman sealed text").derive(self._caller))
        return self._cipher


def _caller(headers: Headers) -> bytes:
    """The caller's credentials: a key, a token, or the id of a signature's key; b"" if there are none."""
    shown = dict(reversed(headers))
    value = next((shown[name] for name in _KEY_HEADERS if shown.get(name)), b"").strip()
    signed = _SIGNED.match(value)
    return signed.group(1) if signed is not None else _BEARER.sub(b"", value, count=1)
