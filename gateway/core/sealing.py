"""Whose texts are sealed, and by which secrets. The seal itself is wire/sealed.py."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from msgspec import Struct

NAME_BYTES = 8


class Sealing(Struct, frozen=True):
    """By what the texts of one caller are sealed.

    owner   who the caller is. A text of one owner is opened for no other one
    secret  seals the owner's new texts
    find    the name of a secret, as a sealed text has it -> the secret, or None where it is not known; None where no
            other secret than `secret` is known
    former  what earlier versions called the owner, whose texts are opened, too; None if that is the same
    """

    owner: str
    secret: bytes
    find: Callable[[bytes], bytes | None] | None = None
    former: str | None = None

    def __repr__(self) -> str:
        return f"Sealing({self.owner!r})"


def secret_name(secret: bytes) -> bytes:
    """The name of `secret` in the texts sealed with it. The name of a random secret reveals nothing about it."""
    return sha256(b"dragoman sealed text " + secret).digest()[:NAME_BYTES]
