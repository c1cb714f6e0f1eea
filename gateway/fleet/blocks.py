"""What one engine has in its prefix cache, block by block, as its KV-cache events tell.

An engine names a block by a hash of its own. Each block's key here is a hash over all tokens up to its end, so that a
prompt whose tokens are known can be looked up: `chain` makes its keys.

Source: vLLM's `distributed/kv_events.py`. A batch is [ts, events, rank] or a map of these; an event is an array that
begins with its name, or a map with its name as `type`, by the version.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

MOST_BLOCKS = 131_072
"""Of one engine; further ones are not counted. Some 145 bytes each, 19 MB at most; 23 MB if it names them by 32
bytes."""
_NAMES: Mapping[str, tuple[str, ...]] = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
# Where a block is found by the model. Copies elsewhere (in the machine's memory, on disks) are slower, and not counted.
_FAST = (None, "GPU")
_LONGEST_NAME = 64
_WRONG = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, msgspec.MsgspecError)
_UNSEEN = object()


class Malformed(Exception):
    """A batch of events that cannot be read."""


def chain(tokens: Sequence[int], size: int, salt: str | None) -> list[int]:
    """The keys of the whole blocks of a prompt, with `size` tokens each. `salt` is what its request's cache has."""
    packed = array("I", tokens).tobytes()
    width = size * array("I").itemsize
    keys: list[int] = []
    key, extra = 0, "" if salt is None else repr([salt])
    for at in range(0, len(packed) - width + 1, width):
        key = hash((key, packed[at : at + width], extra))
        keys.append(key)
        extra = ""
    return keys


class Blocks:
    """The blocks of one engine.

    size    tokens of a block; 0 while none is known
    last    the number of the last batch that was applied; -1 for none
    newest  that batch
    whole   no batch before it is missing: what is not here the engine does not have
    heard   its events arrive
    ranks   engines behind its address, as it says; those of several ranks cannot be told apart in a pick
    salted  it tells of salts, so that the prompts of tenants can be told apart
    owner   who applies its batches; another one takes over after a reload

    connected  where it publishes is reached
    read, lost, unreadable  batches that were applied, that were missed for good, that could not be read
    """

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._most = most
        self.heard = self.connected = False
        self.ranks = 1
        self.owner: object = None
        self.read = self.lost = self.unreadable = 0
        self.begin(True)

    def begin(self, whole: bool, missed: int = 0) -> None:
        """Forgets everything. whole: the next batch is the engine's first one. missed: batches that are not to be had
        again."""
        self.lost += missed
        self.size = 0
        self.last = -1
        self.newest = b""
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
        """What it has counts."""
        return self.heard and self.ranks == 1

    @property
    def state(self) -> str:
        """What is known of its cache: the `whole` of it, a `part`, or nothing (`silent`)."""
        return "silent" if not self.live else "whole" if self.whole else "part"

    @property
    def memory(self) -> int:
        """Bytes that are held of it, as Python counts its objects. Names of blocks are taken to be of one size."""
        name, key = next(iter(self._keys.items()), (0, 0))
        each = sys.getsizeof(name) + sys.getsizeof(key)
        return sys.getsizeof(self._keys) + sys.getsizeof(self._held) + each * len(self._keys) + len(self.newest)

    def tells(self, salt: str | None) -> bool:
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

    def apply(self, number: int, payload: bytes) -> None:
        """Applies a batch. Raises Malformed; then nothing is known of this engine any more."""
        try:
            for name, event in _read(payload):
                if name == "BlockStored":
                    self._stored(event)
                elif name == "BlockRemoved":
                    self._removed(event)
                elif name == "AllBlocksCleared":
                    self._clear()
            self.read += 1
        except _WRONG as error:
            self.unreadable += 1
            self.begin(False)
            raise Malformed(type(error).__name__) from None
        finally:
            self.last, self.newest = number, payload

    def _stored(self, event: Mapping[str, Any]) -> None:
        size, tokens, hashes = event["block_size"], event["token_ids"], event["block_hashes"]
        if event.get("medium") not in _FAST:
            return
        # Of an engine with several kinds of layers, the first kind stands for all.
        if self._group is _UNSEEN:
            self._group = event.get("group_idx")
        if event.get("group_idx") != self._group or not hashes:
            return
        if type(size) is not int or size < 1 or len(tokens) < size * len(hashes):
            raise ValueError("a block has as many tokens as its size")
        if self.size and size != self.size:  # an entry inside a block
            return
        self.size = size
        parent = event["parent_block_hash"]
        key = 0 if parent is None else self._keys.get(parent)
        if key is None:  # it continues a prompt whose beginning was stored before we listened, or is not counted
            return
        adapter = event.get("lora_name") if event.get("lora_name") is not None else event.get("lora_id")
        extras = event.get("extra_keys")
        self.salted = self.salted or extras is not None
        packed = array("I", tokens[: size * len(hashes)]).tobytes()
        width = len(packed) // len(hashes)
        for index, name in enumerate(hashes):
            if type(name) is not int and (type(name) is not bytes or len(name) > _LONGEST_NAME):
                raise ValueError("a block's name is a number or a hash")
            own = extras[index] if extras is not None else None
            extra = repr(list(own)) if own else "" if adapter is None else f"adapter {adapter}"
            key = hash((key, packed[index * width : (index + 1) * width], extra))
            if self._keys.get(name) != key:  # else it is told again: vLLM can report what a request found
                if len(self._keys) >= self._most:
                    return
                self._forget(name)
                self._keys[name] = key
                self._held.add(key)

    def _removed(self, event: Mapping[str, Any]) -> None:
        if event.get("medium") in _FAST and event.get("group_idx") == self._group:
            for name in event["block_hashes"]:
                self._forget(name)

    def _forget(self, name: Any) -> None:
        key = self._keys.pop(name, None)
        if key is not None:
            self._held.discard(key)


def _read(payload: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    batch = msgspec.msgpack.decode(payload)
    for event in batch["events"] if isinstance(batch, dict) else batch[1]:
        if isinstance(event, dict):
            yield event["type"], event
        else:
            name = event[0]
            yield name, dict(zip(_NAMES.get(name, ()), event[1:], strict=False))
