"""Operations on counters packed into one script call, and its answer taken apart; `admit.lua` is the other end."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterable, Sequence
from typing import Any, cast

from msgspec import msgpack

from gateway.limits.model import Plan, Verdict
from gateway.limits.window import Shape

ADMIT, SETTLE, RENEW, BEAT, LOOK, RESET = 1, 2, 3, 4, 5, 6

Item = tuple[int, str, Plan, Sequence[Any], "Future[Verdict] | None"]
"""(code, lease, plan, what the code needs, who waits). ADMIT: costs. SETTLE: settlements. BEAT: (key, ttl in us)."""

_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder().decode


def pack(items: Iterable[Item], deadline: int, lease_ttl: int) -> tuple[list[bytes], bytes]:
    """(keys, payload) of one call; each key and each shape travels once. Times in microseconds."""
    keys: dict[bytes, int] = {}
    shapes: list[Shape] = []
    numbers: dict[int, int] = {}  # id of a shape -> its number; the same rule's plans share one object
    places: dict[int, list[int]] = {}  # id of a plan -> k, s, k, s, ...
    ops: list[list[Any]] = []
    for code, lease, plan, what, _ in items:
        op: list[Any] = [code, lease]
        ops.append(op)
        if code == BEAT:
            op += (keys.setdefault(what[0], len(keys) + 1), what[1])
            continue
        place = places.get(id(plan))
        if place is None:
            place = places[id(plan)] = []
            for key, shape in zip(plan.keys, plan.shapes, strict=True):
                number = numbers.get(id(shape))
                if number is None:
                    shapes.append(shape)
                    number = numbers[id(shape)] = len(shapes)
                place += (keys.setdefault(key, len(keys) + 1), number)
        if code == ADMIT:
            at = 0
            for cost in what:
                op += (place[at], place[at + 1], cost)
                at += 2
        elif code == SETTLE:
            for index, entry, delta in what:
                op += (place[2 * index], place[2 * index + 1], entry, delta)
        elif code == RENEW:
            for index in plan.slots:
                op += (place[2 * index], place[2 * index + 1])
        else:
            op += place
    return list(keys), _encode((deadline, lease_ttl, shapes, ops))


def frame(words: Sequence[bytes]) -> bytes:
    """A command as the server reads it (RESP arrays of bulk strings), in one piece."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def unpack(raw: bytes) -> tuple[int, list[Verdict]]:
    """(server time in microseconds, the results of those items that have one, in their order)."""
    answer = _decode(raw)
    return cast(int, answer[0]), cast("list[Verdict]", answer[1:])


def answered(item: Item) -> bool:
    """Whether the script answers this item at all."""
    return item[0] not in (SETTLE, RENEW)


def only_releases(item: Item) -> Item | None:
    """What of a settlement may be sent again when nobody knows whether it ran: releasing a slot twice is harmless,
    giving tokens back twice is not. What is not given back slides out of its window."""
    code, lease, plan, what, _ = item
    if code != SETTLE:
        return None
    slots = tuple(one for one in what if one[0] in plan.slots)
    return (SETTLE, lease, plan, slots, None) if slots else None
