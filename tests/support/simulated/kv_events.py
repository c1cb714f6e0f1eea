"""What the prefix cache holds, published as vLLM does: over ZeroMQ, in its bytes (`distributed/kv_events.py`).

A batch is published for each change, numbered from 0, and kept for whoever asks for those from a number on. Needs the
extra `kv-events`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from msgspec import Struct

_KEPT = 10_000
_END = (-1).to_bytes(8, "big", signed=True)


class _Event(Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(_Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(_Event):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(_Event):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class Publisher:
    """Of one worker, from its start to its end.

    port, replay_port  where it listens
    published   how many batches
    kept        those that are sent again
    subscribed  if False, batches are dropped on their way
    """

    cleared = AllBlocksCleared()

    def __init__(self, host: str, port: int, replay_port: int) -> None:
        self._context = zmq.asyncio.Context()
        # Sends at once, and drops what a subscriber does not take.
        self._events = zmq.Socket(self._context, zmq.PUB)
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.sndhwm = 2 * _KEPT
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self.published = 0
        self.subscribed = True
        self.port = _bind(self._events, host, port)
        self.replay_port = _bind(self._replay, host, replay_port)
        self._task = asyncio.create_task(self._replaying())

    @staticmethod
    def stored(key: int, parent: int | None, tokens: Sequence[int], size: int, salt: str, adapter: str) -> BlockStored:
        """The event of one block, which follows `parent`."""
        own = (adapter, salt if parent is None else "")
        extra = tuple(word for word in own if word) or None
        before = None if parent is None else _name(parent)
        return BlockStored([_name(key)], before, list(tokens), size, None, "GPU", adapter or None, [extra], 0)

    @staticmethod
    def removed(key: int) -> BlockRemoved:
        return BlockRemoved([_name(key)], "GPU", 0)

    def publish(self, events: list[Event]) -> None:
        """One batch."""
        self.send(msgspec.msgpack.encode(Batch(time.time(), events, 0)))

    def send(self, payload: bytes) -> None:
        """The bytes of a batch."""
        if self.subscribed:
            self._events.send_multipart([b"", self.published.to_bytes(8, "big"), payload])
        self.kept.append((self.published, payload))
        self.published += 1

    def hush(self) -> None:
        """Answer nobody any more who missed some."""
        self._task.cancel()

    async def _replaying(self) -> None:
        while True:
            name, _, start = await self._replay.recv_multipart()
            first = int.from_bytes(start, "big")
            for number, payload in [one for one in self.kept if one[0] >= first]:
                await self._replay.send_multipart([name, b"", b"", number.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([name, b"", b"", _END, b""])

    def close(self) -> None:
        self._task.cancel()
        self._events.close(linger=0)
        self._replay.close(linger=0)
        self._context.destroy(linger=0)


def _name(key: int) -> int:
    """The engine's own name of a block, in 64 bits without a sign."""
    return key & ((1 << 64) - 1)


def _bind(socket: zmq.Socket[Any], host: str, port: int) -> int:
    socket.bind(f"tcp://{host}:{port or '*'}")
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
