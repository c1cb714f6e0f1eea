"""From the head of a request to its caller, a `Principal`. No other room knows which headers carry keys."""

from gateway.auth.headers import find_key
from gateway.auth.jwt import JwtVerifier, read_keys
from gateway.auth.keyring import Keyring, KeyTable
from gateway.auth.keys import checksum, new_key, well_formed
from gateway.auth.known import KnownKeys
from gateway.auth.principal import ANONYMOUS, PendingAuth, Principal

__all__ = [
    "ANONYMOUS",
    "JwtVerifier",
    "KeyTable",
    "Keyring",
    "KnownKeys",
    "PendingAuth",
    "Principal",
    "checksum",
    "find_key",
    "new_key",
    "read_keys",
    "well_formed",
]
