"""By which secrets the texts of callers are sealed (gateway/wire/sealed.py).

A configured secret (`seal`) serves all callers. Without it a key has a secret of its own, known to every gateway that
has the same configuration: for one of our keys its hash, else the secret of its AWS pair. A key that was made elsewhere
may be weak, and a token comes with no secret: for their callers there is only a secret of this process.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from gateway.config import Key, Seal
from gateway.core.sealing import secret_name

PROCESS_SECRET = secrets.token_bytes(32)
"""`serve --processes` forks after it was made: all processes have the same one."""


class SealingSecrets:
    """The secrets of one configuration."""

    def __init__(self, seal: Seal | None, keys: Mapping[str, Key]) -> None:
        self._common = seal.secret.encode() if seal is not None else None
        self._keys = keys
        self._stored: dict[str, bytes] = {}
        # By name; made when a text is sealed by another secret than its caller's.
        self._by_name: dict[bytes, bytes] = {}

    def __repr__(self) -> str:
        return "SealingSecrets()"

    def of(self, name: str) -> bytes:
        """The secret that seals the texts of the key `name`, or of the bearer of a token, which has another name."""
        if self._common is not None:
            return self._common
        key = self._keys.get(name)
        if key is None:
            return self._stored.get(name, PROCESS_SECRET)
        if key.id is not None and key.hash is not None:
            return bytes.fromhex(key.hash.removeprefix("sha256:"))
        return PROCESS_SECRET if key.aws_secret is None else key.aws_secret.encode()

    def add(self, name: str, seal: str) -> None:
        """seal: of a key of the store. Texts of its callers stay readable after it was revoked."""
        self._stored[name] = secret = bytes.fromhex(seal.removeprefix("sha256:"))
        if self._by_name and self._common is None:
            self._by_name[secret_name(secret)] = secret

    def find(self, name: bytes) -> bytes | None:
        """The secret with this name, None if it is not known here."""
        if not self._by_name:
            every = {self.of(""), *map(self.of, self._keys)}
            if self._common is None:
                every |= set(self._stored.values())
            self._by_name = {secret_name(one): one for one in every}
        return self._by_name.get(name)
