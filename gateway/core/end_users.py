"""The canonical name of an end user: the user of a client's application on whose behalf it asks.

Clients write anything into it, so what is kept of it is bounded: a name as it is if it is short and printable, else a
digest of it. With a secret every name is a digest, by which nobody without the secret can find out the name.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

_LONGEST = 128
_READ = 4096
"""Characters of a name that are looked at. Longer ones differ by these, and by their length."""


def end_user(given: str, secret: str | None = None) -> str | None:
    """The end user that is kept for the name `given`; None for an empty one."""
    name = given[: _READ + 1].strip()
    if not name:
        return None
    if secret is None and len(name) <= _LONGEST and name.isprintable():
        return name
    return digest_of(name if len(given) <= _READ else f"{name[:_READ]} {len(given)}", secret)


def digest_of(name: str, secret: str | None = None) -> str:
    """A name of 39 characters or, by a secret, of 32."""
    text = name.encode("utf-8", "surrogatepass")
    if secret is None:
        return "sha256:" + sha256(text).hexdigest()[:32]
    return hmac.digest(secret.encode(), text, "sha256").hex()[:32]
