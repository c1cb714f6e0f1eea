"""Whether Redis keeps what it is given. A gateway asks once, whenever it begins to follow the keys."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.auth.key_store import KeyStore, StoreDown

_ASKED = ("appendonly", "save", "maxmemory-policy")


async def doubt(store: KeyStore) -> str | None:
    """Why Redis might lose keys, as a sentence; None if it is set up to keep them."""
    try:
        async with store.asked() as client:
            found = [await client.config_get(name) for name in _ASKED]
    except StoreDown:
        # Managed services refuse CONFIG, and an ACL may.
        return "it refuses CONFIG: see in its settings that it has an append-only file, and evicts nothing"
    return judged({name: _value(one, name) for name, one in zip(_ASKED, found, strict=True)})


def _value(answer: object, name: str) -> str:
    """The option's value. A cluster answers by node."""
    while isinstance(answer, Mapping):
        answer = answer[name] if name in answer else next(iter(answer.values()), "")
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def judged(options: Mapping[str, str]) -> str | None:
    """As `doubt`, by the values of `_ASKED`."""
    if options["maxmemory-policy"].startswith("allkeys"):
        return f"maxmemory-policy is {options['maxmemory-policy']}: it evicts keys if memory is short; set noeviction"
    if options["appendonly"] == "yes":
        return None
    if options["save"].strip('" '):
        return f"appendonly is off: a crash loses the changes since the last snapshot (save {options['save']})"
    return "appendonly is off and save is empty: a restart loses all keys"
