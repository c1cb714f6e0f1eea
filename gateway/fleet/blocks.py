"""The blocks in one engine's prefix cache, as its KV-cache events report them.

An engine names a block by a hash of its own. Each block's key here is a hash over all tokens up to its end, so that a
prompt whose tokens are known can be looked up: `chain` makes its keys.

Source: vLLM's `distributed/kv_events.py`. A batch is [ts, events, rank] or a map of these; an event is an array that
begins with its name, or a map with its name as `type`, by the version.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Generator, Iterator, Sequence
from typing import Annotated, Any

import msgspec

from gateway.fleet.noticed import Attribute, Noticed, noticed

MOST_BLOCKS = 131_072
"""Blocks of one engine; further ones are not counted. A block takes some 145 bytes, all take 19 MB at most, or 23 MB if
the engine names them by 32 bytes."""
MOST_BYTES = 1 << 20
"""Bytes of a batch. An engine sends one at each step, of some thousand tokens. 65,536 tokens take 330 kB at most,
the names of their blocks (4,096, by 32 bytes) 140 kB, and so do those of the blocks that had to go."""
_MOST_EVENTS = 32_768
"""Events of a batch. vLLM reports each block that it removes by an event of its own."""
_MOST_TOKENS = 262_144
_MOST_NAMED = 65_536
"""Blocks of an event: as many tokens as it may have, in blocks of 4."""
_SLICE_BYTES = 32 << 10
_SLICE_BLOCKS = 512
_SLICE_TOKENS = 8_192
# Whole numbers in MessagePack, in any width: where a slice of them ends is found without decoding them.
_NUMBERS = re.compile(rb"(?s:[\x00-\x7f]|[\xcc\xd0].|[\xcd\xd1]..|[\xce\xd2].{4}|[\xcf\xd3].{8}){1,%d}" % _SLICE_TOKENS)
# Media that the model reads blocks from. Copies elsewhere (in the machine's memory, on disks) are slower: not counted.
_FAST = (None, "GPU")
_LONGEST_NAME = 64
_WRONG = (IndexError, OverflowError, RecursionError, TypeError, ValueError, msgspec.MsgspecError)
_WIDTH = array("I").itemsize
_UNSEEN = object()
_NONE = msgspec.msgpack.encode(None)
_NOTHING = (_NONE, msgspec.msgpack.encode([]))

Name = int | Annotated[bytes, msgspec.Meta(max_length=_LONGEST_NAME)]
Names = Annotated[list[Name], msgspec.Meta(max_length=_MOST_NAMED)]
Extras = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=_MOST_NAMED)]
Events = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=_MOST_EVENTS)]


class _Batch(msgspec.Struct, gc=False):
    events: Events


class _BatchArray(msgspec.Struct, array_like=True, gc=False):
    ts: msgspec.Raw
    events: Events


class _Named(msgspec.Struct, gc=False):
    type: str


class _NamedArray(_Named, array_like=True, gc=False):
    pass


class _Stored(_Named, gc=False):
    block_hashes: Names
    parent_block_hash: Name | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Extras | None = None
    group_idx: int | None = None


class _StoredArray(_Stored, array_like=True, gc=False):
    pass


class _Removed(_Named, gc=False):
    block_hashes: Names
    medium: str | None = None
    group_idx: int | None = None


class _RemovedArray(_Removed, array_like=True, gc=False):
    pass


# The declared types bound the objects that are made of the bytes: a field that is not used makes none. Each pair has a
# decoder of arrays and one of maps.
_batch = msgspec.msgpack.Decoder(_BatchArray), msgspec.msgpack.Decoder(_Batch)
_named = msgspec.msgpack.Decoder(_NamedArray), msgspec.msgpack.Decoder(_Named)
_stored = msgspec.msgpack.Decoder(_StoredArray), msgspec.msgpack.Decoder(_Stored)
_removed = msgspec.msgpack.Decoder(_RemovedArray), msgspec.msgpack.Decoder(_Removed)
_numbers = msgspec.msgpack.Decoder(list[int])


class Malformed(Exception):
    """A batch of events that cannot be read."""


def chain(tokens: Sequence[int], size: int, salt: str | None) -> list[int]:
    """The keys of the whole blocks of a prompt, with `size` tokens each. `salt` is the cache salt of its request."""
    packed = array("I", tokens).tobytes()
    width = size * _WIDTH
    keys: list[int] = []
    key, extra = 0, b"" if salt is None else msgspec.msgpack.encode([salt])
    for at in range(0, len(packed) - width + 1, width):
        key = hash((key, packed[at : at + width], extra))
        keys.append(key)
        extra = b""
    return keys


class Blocks(Noticed):
    """The blocks of one engine.

    size    tokens of a block; 0 while none is known
    last    the number of the last batch that was applied; -1 for none
    newest  a fingerprint of that batch
    whole   no batch before that one is missing: the engine has no block that is not here
    arriving  its events arrive
    ranks   engines behind the worker's address, as its metrics report; a pick cannot choose among several ranks
    salted  its events have salts, so that equal prompts of different tenants have different keys
    owner   the listener that applies its batches; another one takes over after a reload

    connected  there is a connection to the port where it publishes
    read, lost, unreadable  batches that were applied, that were missed for good, that could not be read
    """

    arriving: Attribute[bool] = noticed("arriving")
    ranks: Attribute[int] = noticed("ranks")

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._most = most
        self._arriving = self.connected = False
        self._ranks = 1
        self.owner: object = None
        self.read = self.lost = self.unreadable = 0
        self.begin(True)

    def begin(self, whole: bool, missed: int = 0) -> None:
        """Forgets everything. whole: the next batch is the engine's first one. missed: batches that are lost for
        good."""
        self.lost += missed
        self.size = 0
        self.last = -1
        self.newest = 0
        self.whole = whole
        self.salted = False
        self._group: object = _UNSEEN
        self._clear()

    def _clear(self) -> None:
        self._keys: dict[Any, int] = {}  # the engine's hash -> our key
        self._held: set[int] = set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def live(self) -> bool:
        """Whether picks may use these blocks."""
        return self.arriving and self.ranks == 1

    @property
    def state(self) -> str:
        """How much of the engine's cache is known: the `whole` of it, a `part`, or nothing (`silent`)."""
        return "silent" if not self.live else "whole" if self.whole else "part"

    @property
    def memory(self) -> int:
        """Bytes that are held of it, as Python counts its objects. Names of blocks are taken to be of one size."""
        name, key = next(iter(self._keys.items()), (0, 0))
        each = sys.getsizeof(name) + sys.getsizeof(key)
        return sys.getsizeof(self._keys) + sys.getsizeof(self._held) + each * len(self._keys)

    def covers(self, salt: str | None) -> bool:
        """Whether a prompt with this salt can be looked up."""
        return self.live and (salt is None or self.salted)

    def match(self, keys: Sequence[int]) -> int:
        """The tokens of a prompt with these keys that the engine has, from the first on."""
        held, depth = self._held, 0
        for key in keys:
            if key not in held:
                break
            depth += 1
        return depth * self.size

    def steps(self, number: int, payload: bytes) -> Iterator[None]:
        """Applies a batch in steps: other work may go between them. A caller that stops early has not applied the
        batch. Raises Malformed; then nothing is known of this engine any more."""
        try:
            yield from self._applied(payload)
        except Exception as error:
            self.unreadable += 1
            self.begin(False)
            self.last, self.newest = number, fingerprint(payload)
            if isinstance(error, _WRONG):
                raise Malformed(type(error).__name__) from None
            raise
        self.read += 1
        self.last, self.newest = number, fingerprint(payload)

    def _applied(self, payload: bytes) -> Iterator[None]:
        if len(payload) > MOST_BYTES:
            raise ValueError("a batch is a step of an engine")
        size = 0
        for event in _batch[_is_map(payload)].decode(payload).events:
            large = len(bytes(event)) > _SLICE_BYTES
            size += len(bytes(event))
            if size > _SLICE_BYTES:
                yield
                size = 0
            form = _is_map(event)
            name = _named[form].decode(event).type
            if large:
                yield
            if name == "BlockStored":
                yield from self._stored(_stored[form].decode(event))
            elif name == "BlockRemoved":
                yield from self._removed(_removed[form].decode(event))
            elif name == "AllBlocksCleared":
                self._clear()

    def _stored(self, event: _Stored) -> Iterator[None]:
        size, hashes = event.block_size, event.block_hashes
        if event.medium not in _FAST:
            return
        # If an engine has several kinds of layers, the first kind stands for all.
        if self._group is _UNSEEN:
            self._group = event.group_idx
        if event.group_idx != self._group or not hashes:
            return
        packed = yield from _packed(event.token_ids)
        if size < 1 or len(packed) < _WIDTH * size * len(hashes):
            raise ValueError("a block has as many tokens as its size")
        if self.size and size != self.size:  # an entry inside a block
            return
        self.size = size
        parent = event.parent_block_hash
        key = 0 if parent is None else self._keys.get(parent)
        if key is None:  # it continues a prompt whose beginning was stored before we listened, or is not counted
            return
        adapter = event.lora_name if event.lora_name is not None else event.lora_id
        extras = event.extra_keys
        self.salted = self.salted or extras is not None
        width = _WIDTH * size
        of_adapter = b"" if adapter is None else f"adapter {adapter}".encode()
        for index, name in enumerate(hashes):
            if index % _SLICE_BLOCKS == _SLICE_BLOCKS - 1:
                yield
            own = bytes(extras[index]) if extras is not None else _NONE
            extra = of_adapter if own in _NOTHING else own
            key = hash((key, packed[index * width : (index + 1) * width], extra))
            if self._keys.get(name) != key:  # else it is reported again: vLLM can report what a request found
                if len(self._keys) >= self._most:
                    return
                self._forget(name)
                self._keys[name] = key
                self._held.add(key)

    def _removed(self, event: _Removed) -> Iterator[None]:
        if event.medium in _FAST and event.group_idx == self._group:
            for index, name in enumerate(event.block_hashes):
                if index % _SLICE_BLOCKS == _SLICE_BLOCKS - 1:
                    yield
                self._forget(name)

    def _forget(self, name: Any) -> None:
        key = self._keys.pop(name, None)
        if key is not None:
            self._held.discard(key)


def fingerprint(payload: bytes) -> int:
    """Tells batches of an engine apart."""
    return hash(payload)


def _packed(tokens: msgspec.Raw) -> Generator[None, None, bytes]:
    """The numbers of an array in MessagePack, as `array("I")` holds them. One call may decode 262,144 of them, which
    takes milliseconds and holds the interpreter's lock: so many are decoded in slices. Raises what is in `_WRONG`."""
    data = bytes(tokens)
    if len(data) <= _SLICE_BYTES:
        return array("I", _numbers.decode(data)).tobytes()
    kind = data[0]
    head = {0xDC: 3, 0xDD: 5}.get(kind, 1)
    if not 0x90 <= kind <= 0x9F and head == 1:
        raise ValueError("token_ids is an array")
    left = kind & 15 if head == 1 else int.from_bytes(data[1:head], "big")
    if left > _MOST_TOKENS:
        raise ValueError("an event has as many tokens as a step of an engine")
    found, at = array("I"), head
    while left:
        several = _NUMBERS.match(data, at)
        if several is None:
            raise ValueError("tokens are whole numbers")
        count = min(left, _SLICE_TOKENS)
        found.extend(_numbers.decode(b"\xdd" + count.to_bytes(4, "big") + several[0]))
        at = several.end()
        left -= count
        if left:
            yield
    return found.tobytes()


def _is_map(packed: bytes | msgspec.Raw) -> bool:
    """Whether this is a map in MessagePack, by its first byte."""
    first = bytes(memoryview(packed)[:1])
    return b"\x80" <= first <= b"\x8f" or first in (b"\xde", b"\xdf")
