"""Thought signatures: a model's thinking that comes back with its calls, sealed for the caller.

Google's clients send a call back with its `thoughtSignature`, and many of them do not send back thoughts. Here the
signature is the thinking itself, encrypted (`wire/sealed.py`), so that a model gets it back and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.sealing import Sealing
from gateway.wire.sealed import Seal

_USE = b"reasoning"
# The field is bytes: clients decode it and may encode it by base64's other alphabet. A sealed text begins with four
# letters and a dot, which is in neither.
_MARK_LETTERS = 4
_TO_PLAIN, _TO_URL = str.maketrans("-_", "+/", "."), str.maketrans("+/", "-_")


class Thoughts:
    """Seals and opens thinking. sealing: `Request.sealing`."""

    def __init__(self, sealing: Callable[[], Sealing] | None) -> None:
        self._seal = Seal(sealing, _USE)

    def close(self, text: str) -> str:
        """The signature for `text`, in base64."""
        return self._seal.close(text).translate(_TO_PLAIN)

    def open(self, signature: str) -> str | None:
        """The thinking; None if the signature is not one of ours for this caller."""
        found = signature.translate(_TO_URL)
        return self._seal.open(f"{found[:_MARK_LETTERS]}.{found[_MARK_LETTERS:]}")
