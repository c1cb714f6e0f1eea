"""Packs operations on counters into one script call, and unpacks its answer. `admit.lua` is the script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from msgspec import msgpack

from gateway.light_task import Promise
from gateway.ratelimit.model import Plan, Verdict
from gateway.ratelimit.window import Shape

ADMIT, SETTLE, RENEW, BEAT, LOOK, RESET, PROBE = 1, 2, 3, 4, 5, 6, 7

Item = tuple[int, str, Plan, Sequence[Any], "Promise[Verdict] | None"]
"""(code, lease, plan, what the code needs, who waits). ADMIT: costs. SETTLE: settlements. RENEW: slots. BEAT and PROBE:
(key, ttl in us). The script answers all but SETTLE and RENEW."""

_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder().decode


def pack(items: Iterable[Item], deadline: int, lease_ttl: int) -> tuple[list[bytes], bytes]:
    """(keys, payload) of one call. Each plan and each list of shapes is sent once. Times in microseconds."""
    keys: list[bytes] = []
    forms: list[tuple[Shape, ...]] = []
    plans: list[tuple[int, int]] = []
    seen: dict[int, int] = {}  # id of a plan, or of its shapes, which plans of the same rules share -> number
    ops: list[Any] = []
    last, number = None, 0
    for code, lease, plan, what, _ in items:
        if plan is not last:  # the operations of a busy subject come one after the other
            if code in (BEAT, PROBE):
                keys.append(what[0])
                ops.append((code, lease, len(keys), what[1]))
                if code == PROBE:
                    keys.append(what[0] + b":probe")
                continue
            last, number = plan, seen.get(id(plan), 0)
            if not number:
                form = seen.get(id(plan.shapes))
                if form is None:
                    forms.append(plan.shapes)
                    form = seen[id(plan.shapes)] = len(forms)
                plans.append((len(keys), form))
                number = seen[id(plan)] = len(plans)
                keys += plan.keys
        ops.append((code, lease, number, what))
    return keys, _encode((deadline, lease_ttl, forms, plans, ops))


def unpack(raw: bytes) -> tuple[int, list[Verdict]]:
    """(server time in microseconds, the results of those items that have one, in their order)."""
    answer = _decode(raw)
    return cast(int, answer[0]), cast("list[Verdict]", answer[1:])


def only_releases(item: Item) -> Item | None:
    """The part of a settlement that may be sent again when it may have run already. Releasing a slot twice is harmless,
    refunding tokens twice is not; tokens that are not refunded slide out of their window."""
    code, lease, plan, what, *_ = item
    if code != SETTLE:
        return None
    slots = tuple(one for one in what if one[0] in plan.slots)
    return (SETTLE, lease, plan, slots, None) if slots else None
