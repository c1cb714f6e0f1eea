"""The form of our keys, and new ones.

A key of ours reads `dgm_<id>_<secret>_<checksum>`:

    id        10 characters, the first a letter, by which people find the entry. It is not secret and may be logged
    secret    43 characters of base 62, 256 random bits
    checksum  6 characters of base 62, the CRC-32 of all before its underscore. With it a typing error is recognised
              without a table, here and in secret scanners. It gives no protection against forgery
"""

from __future__ import annotations

import re
import secrets
from binascii import crc32
from hashlib import sha256

from gateway.config.checks import key_name_fault
from gateway.config.kinds import checked_name

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LETTERS, _ID_DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789abcdefghijklmnopqrstuvwxyz"
_OURS = re.compile(rb"(dgm_[0-9a-z]{4,32}_[0-9A-Za-z]{43})_([0-9A-Za-z]{6})\Z")
_PLAIN_YAML = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")
_YAML_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n"])


def well_formed(key: bytes) -> bool:
    """Whether `key` has the form of our keys and the right checksum; not whether it is valid."""
    found = _OURS.match(key)
    return found is not None and checksum(found[1]) == found[2]


def new_key(name: str, team: str | None = None) -> tuple[str, str]:
    """(the new key, its entry for `keys` as YAML lines). The key is stored nowhere: show it once.

    Raises ValueError when name or team is not allowed in a configuration.
    """
    _fit("name", name)
    wrong = key_name_fault(name)
    if wrong is not None:
        raise ValueError(f"the name {wrong}")
    if team is not None:
        _fit("team", team)
    key, id_, hash_ = new_secret()
    lines = [f"{_yaml(name)}:", f"  id: {id_}", f"  hash: {hash_}"]
    if team is not None:
        lines.append(f"  team: {_yaml(team)}")
    return key, "\n".join(lines) + "\n"


def new_secret() -> tuple[str, str, str]:
    """(a new key, its id, its hash as in a configuration)."""
    id_ = secrets.choice(_LETTERS) + "".join(secrets.choice(_ID_DIGITS) for _ in range(9))
    stem = f"dgm_{id_}_{base62(int.from_bytes(secrets.token_bytes(32), 'big'), 43)}"
    key = f"{stem}_{checksum(stem.encode()).decode()}"
    return key, id_, f"sha256:{sha256(key.encode()).hexdigest()}"


def _fit(what: str, name: str) -> None:
    try:
        checked_name(name)
    except ValueError as error:
        raise ValueError(f"the {what} {error}") from None


def _yaml(text: str) -> str:
    # Names hold neither quotes nor control characters, so only a backslash must be escaped.
    plain = _PLAIN_YAML.match(text) and text.lower() not in _YAML_WORDS
    return text if plain else '"' + text.replace("\\", "\\\\") + '"'


def checksum(stem: bytes) -> bytes:
    """The checksum of `stem`, which is a key up to its last underscore."""
    return base62(crc32(stem), 6).encode()


def base62(number: int, width: int) -> str:
    """The last `width` digits of `number`."""
    digits = ""
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits = _DIGITS[digit] + digits
    return digits
