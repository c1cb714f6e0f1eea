"""Texts that a client stores for the gateway and sends back: encrypted and authenticated, for one caller.

The cipher is AES-SIV (RFC 5297). Its key is derived (HKDF, RFC 5869) from a secret and from the caller's identity, as
the gateway has authenticated it: the headers of a request have no part in it. So nothing is stored, every gateway with
the same secrets opens what another one sealed, and no other caller can read it. A sealed text names its secret: texts
stay readable while the secret is known, also after the caller got a new key.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from gateway.core.sealing import NAME_BYTES, Sealing, secret_name

_MARK = "dgs2."
_KEY_BYTES = 64
_UNKNOWN = Sealing("", b"")


class Seal(Struct):
    """Seals and opens texts. sealing: `Request.sealing`; None if nobody has authenticated the caller, as in a
    translation. use: the purpose; a text that was sealed for one purpose is not opened for another."""

    _sealing: Callable[[], Sealing] | None
    _use: bytes
    _known: Sealing | None = None
    _ciphers: dict[tuple[bytes, str], AESSIV] = {}

    def close(self, text: str) -> str:
        """`text`, sealed. Equal texts give equal results."""
        caller = self._caller()
        secret = caller.secret
        sealed = self._cipher(secret, caller.owner).encrypt(text.encode("utf-8", "surrogatepass") + b"\0", [self._use])
        return _MARK + urlsafe_b64encode(secret_name(secret) + sealed).decode()

    def open(self, sealed: str) -> str | None:
        """The text, or None if it was not sealed for this caller by a secret that is known here."""
        if not sealed.startswith(_MARK):
            return None
        try:
            found = b64decode(sealed.removeprefix(_MARK), b"-_", validate=True)
            secret = self._named(found[:NAME_BYTES])
            if secret is None:
                return None
            return self._decrypted(secret, found[NAME_BYTES:])[:-1].decode()
        except (InvalidTag, Base64Error, ValueError):
            return None

    def _decrypted(self, secret: bytes, text: bytes) -> bytes:
        caller = self._caller()
        try:
            return self._cipher(secret, caller.owner).decrypt(text, [self._use])
        except InvalidTag:
            if caller.former is None:
                raise
            return self._cipher(secret, caller.former).decrypt(text, [self._use])

    def _caller(self) -> Sealing:
        if self._known is None:
            self._known = self._sealing() if self._sealing is not None else _UNKNOWN
        return self._known

    def _named(self, name: bytes) -> bytes | None:
        caller = self._caller()
        if name == secret_name(caller.secret):
            return caller.secret
        return caller.find(name) if caller.find is not None else None

    def _cipher(self, secret: bytes, owner: str) -> AESSIV:
        cipher = self._ciphers.get((secret, owner))
        if cipher is None:
            about = b"dragoman sealed text for " + owner.encode()
            cipher = self._ciphers[secret, owner] = AESSIV(HKDF(SHA256(), _KEY_BYTES, None, about).derive(secret))
        return cipher
