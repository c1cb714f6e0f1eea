"""Workers that an admin takes out of service for a while, at all gateways.

Their addresses are in Redis beside the keys of the store, and each gateway looks there: a drain outlives gateways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gateway.auth.key_store import KeyStore, StoreDown
from gateway.background import cancel_tasks, keep_running
from gateway.core.key_kind import KeyKind
from gateway.features import Watched

KEY_KINDS = (KeyKind("{NAMESPACE-keys}:drained"),)  # addresses, one a line, the last one drained last
_MOST = 1000
"""Addresses that are kept: a worker that is gone for good may never be undrained."""
_LOOK_S = 2.0
_CHANGE = """
local drained = {}
for one in string.gmatch(redis.call('GET', KEYS[1]) or '', '[^\\n]+') do
  if one ~= ARGV[1] then drained[#drained + 1] = one end
end
if ARGV[2] == '1' then drained[#drained + 1] = ARGV[1] end
redis.call('SET', KEYS[1], table.concat(drained, '\\n', math.max(1, #drained - ARGV[3] + 1)))
"""


class Draining:
    """Drains workers for admins: at this gateway and, by an entry in the store of keys, at all others.

    watched: returns the gateway as it is now."""

    def __init__(self, watched: Callable[[], Watched], store: KeyStore) -> None:
        self._watched = watched
        self._store = store
        self._key = store.base + ":drained"
        self._turn = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    def models_of(self, address: str) -> list[str]:
        """The models of the worker at `address`; none if it is unknown."""
        return [model for model, one in self._watched().fleets.workers if one == address]

    async def drain(self, address: str, drained: bool) -> None:
        """As `fleet.fleets.Fleets.drain`; at other gateways soon. Raises StoreDown."""
        async with self._turn:
            async with self._store.asked() as client:
                await client.eval(_CHANGE, 1, self._key, address, int(drained), _MOST)
            await self._look()

    async def _look(self) -> None:
        async with self._store.asked() as client:
            found = await client.get(self._key) or b""
        fleets, drained = self._watched().fleets, set(found.decode(errors="replace").split())
        for address in drained ^ fleets.drained:
            fleets.drain(address, address in drained)

    async def start(self) -> None:
        """Looks once, and then again and again. Does not raise if Redis is away: then it looks when it is back."""
        await self._look_in_turn()
        self._looking = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            with keep_running("look for drained workers"):
                await self._look_in_turn()

    async def _look_in_turn(self) -> None:
        async with self._turn:
            with suppress(StoreDown):
                await self._look()

    async def close(self) -> None:
        await cancel_tasks(self._looking)
