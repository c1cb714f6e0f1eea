"""Packs operations on counters into one script call, and unpacks its answer. `admit.lua` is the script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, msgpack

from gateway.light_task import Promise
from gateway.ratelimit.model import Plan, Settlement, Verdict
from gateway.ratelimit.window import Shape

ADMIT, SETTLE, RENEW, BEAT, LOOK, RESET, PROBE, RAISE, LEASE = 1, 2, 3, 4, 5, 6, 7, 8, 9


Result = int | Verdict
"""A verdict for ADMIT, LOOK and LEASE; for BEAT and PROBE the number of live replicas."""


class Operation(Struct, eq=False):
    """One operation on the counters of a plan. holder: its name, or for SETTLE those of several. what: for ADMIT costs,
    for SETTLE settlements, for RENEW slots, for RAISE sums, for LEASE costs and names, for BEAT and PROBE (key, ttl in
    microseconds). waiter: gets the answer; the script answers all but SETTLE and RENEW. again: it was refused once."""

    code: int
    holder: str | Sequence[str]
    plan: Plan
    what: Sequence[Any]
    waiter: Promise[Result] | None = None
    again: bool = False


_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(list[Result]).decode


def pack(items: Iterable[Operation], deadline: int, slot_ttl: int) -> tuple[list[bytes], bytes]:
    """(keys, payload) of one call. Each plan and each list of shapes is sent once. Times in microseconds."""
    keys: list[bytes] = []
    forms: list[tuple[Shape, ...]] = []
    plans: list[tuple[int, int]] = []
    numbers: dict[int, int] = {}  # id of a plan, or of its shapes, which plans of the same rules share -> number
    ops: list[Any] = []
    last, number = None, 0
    for one in items:
        code, plan = one.code, one.plan
        if plan is not last:  # the operations of a busy subject come one after the other
            if code in (BEAT, PROBE):
                keys.append(one.what[0])
                ops.append((code, one.holder, len(keys), one.what[1]))
                if code == PROBE:
                    keys.append(one.what[0] + b":probe")
                continue
            last, number = plan, numbers.get(id(plan), 0)
            if not number:
                form = numbers.get(id(plan.shapes))
                if form is None:
                    forms.append(plan.shapes)
                    form = numbers[id(plan.shapes)] = len(forms)
                plans.append((len(keys), form))
                number = numbers[id(plan)] = len(plans)
                keys += plan.keys
                if plan.before:
                    keys += [key for key in plan.before if key]
        ops.append((code, one.holder, number, one.what))
    return keys, _encode((deadline, slot_ttl, forms, plans, ops))


def unpack(raw: bytes) -> tuple[int, list[Result]]:
    """(server time in microseconds, the results of those operations that have one, in their order)."""
    now, *results = _decode(raw)
    assert isinstance(now, int)
    return now, results


def releases_of(one: Operation) -> Operation | None:
    """The settlement of an operation that may have run already, and whose answer was lost. It frees the slots that the
    operation took or freed: releasing a slot twice is harmless, refunding tokens twice is not. Only the answer named
    the slice of a charge, so that slides out of its window, as tokens that are not refunded do."""
    slots: Sequence[Settlement] = ()
    if one.code == SETTLE:
        slots = [settlement for settlement in one.what if settlement.index in one.plan.slots]
    elif one.code in (ADMIT, LEASE):
        slots = one.plan.releases
    names = one.what[1] if one.code == LEASE else one.holder
    return Operation(SETTLE, names, one.plan, slots) if slots else None
