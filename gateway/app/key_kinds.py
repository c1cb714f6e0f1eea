"""All kinds of keys that gateways write to Redis, whatever the configuration."""

from __future__ import annotations

from gateway import ratelimit
from gateway.app.features import folders
from gateway.auth import key_store
from gateway.core.key_kind import KeyKind
from gateway.observe import accounting, ledger


def key_kinds() -> list[KeyKind]:
    """The first that fits a key is its kind."""
    found = [*ratelimit.KEY_KINDS, *key_store.KEY_KINDS, *ledger.KEY_KINDS]
    for _, folder in folders():
        if hasattr(folder, "key_kinds"):
            found += folder.key_kinds()
    return [*found, *accounting.KEY_KINDS]  # its last part is any text
