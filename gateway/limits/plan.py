"""The counters of a subject: which rules apply, and under which keys. Computed once for each subject."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from ipaddress import AddressValueError, IPv6Address
from zlib import crc32

from msgspec import Struct

from gateway.limits.model import Dimension, Plan, Rule, Subject
from gateway.limits.window import Shape, shape

REMEMBERED = 16_384
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_PLAIN = re.compile(r"[A-Za-z0-9_.:@/-]{1,64}")


class Layout(Struct, frozen=True):
    """Where a store keeps its counters. All counters of one request are in one hash slot, so that a Redis Cluster can
    decide them in one step.

    namespace     separates deployments on one Redis: letters, digits, `_ . -`
    partitions    hash slots in use. 1 puts every counter in one slot, that is on one shard of a cluster, and allows
                  every scope. With more, every rule must have `partition_by` in its scope
    partition_by  the dimension whose value chooses the slot
    """

    namespace: str = "dragoman"
    partitions: int = 1
    partition_by: Dimension | None = None

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ValueError("namespace must be 1 to 128 letters, digits, '_', '.' or '-'")
        if not 1 <= self.partitions <= 1024:
            raise ValueError("partitions must be 1 to 1024")
        if self.partitions > 1 and self.partition_by is None:
            raise ValueError("more than one partition needs partition_by")

    def tag(self, subject: Subject) -> int:
        if self.partitions == 1 or self.partition_by is None:
            return 0
        return crc32((getattr(subject, self.partition_by) or "").encode("utf-8", "surrogatepass")) % self.partitions

    def key(self, tag: int, name: str) -> bytes:
        return f"{{{self.namespace}:{tag}}}:{name}".encode()


class Replaced(Struct, frozen=True):
    """The rules before a reload. until: for each rule, the time (monotonic seconds) until which its counters are still
    enforced beside the new counter of a rule of the same kind; 0 when that time is over."""

    rules: tuple[Rule, ...]
    until: tuple[float, ...]

    def alive(self, now: float) -> Replaced:
        if all(one == 0 or one > now for one in self.until):
            return self
        return Replaced(self.rules, tuple(one if one > now else 0.0 for one in self.until))


class Plans:
    """The plans of all subjects, cached. Raises ValueError if the layout would spread the counters of one request over
    several hash slots."""

    def __init__(self, rules: Sequence[Rule], layout: Layout, replaced: Sequence[Replaced] = ()) -> None:
        for rule in rules:
            if layout.partitions > 1 and layout.partition_by not in rule.scope:
                raise ValueError(
                    f"limit '{rule.name}' is not counted per {layout.partition_by}, so with partitions the limits of "
                    "one request would lie in several hash slots and could not be decided in one step"
                )
        self._rules = [(rule, shape(rule)) for rule in rules]
        self._replaced = [
            [(rule, shape(rule), until) for rule, until in zip(old.rules, old.until, strict=True)] for old in replaced
        ]
        self._layout = layout
        of_models = {rule.name for rule in rules if "model" in (*rule.scope, *rule.match)}
        self._early = [one for one in self._rules if one[0].kind != "tokens" and one[0].name not in of_models]
        # The subject, or (subject, the counters that are left out).
        self._known: dict[object, Plan] = {}
        self._shapes: dict[tuple[Shape, ...], tuple[Shape, ...]] = {}  # equal ones are one object: they travel once

    def of(self, subject: Subject, without: tuple[bytes, ...] = ()) -> Plan:
        """without: counters that `early` had."""
        known = (subject, without) if without else subject
        return self._known.get(known) or self._keep(known, self._make(subject, without))

    def early(self, subject: Subject) -> Plan:
        """The counters that can be charged before the body is read, whatever model it names: those of requests and
        concurrency, unless a limit of their name is one for models. subject: without a model."""
        tag = self._layout.tag(subject)
        known = (subject, None)
        return self._known.get(known) or self._keep(known, self._planned(self._chosen(self._early, subject, tag), tag))

    def _keep(self, known: object, plan: Plan) -> Plan:
        if len(self._known) >= REMEMBERED:  # the oldest half, so that a flood of strangers costs little
            for old in list(self._known)[: REMEMBERED // 2]:
                del self._known[old]
        self._known[known] = plan
        return plan

    def _make(self, subject: Subject, without: tuple[bytes, ...]) -> Plan:
        tag = self._layout.tag(subject)
        chosen = self._chosen(self._rules, subject, tag)
        for old in self._replaced:
            before = self._chosen([(rule, numbers) for rule, numbers, _ in old], subject, tag)
            alive = {id(rule) for rule, _, until in old if until}
            # A kind of limit that has a new counter since the reload.
            fresh = {rule.kind for key, (rule, _) in chosen.items() if key not in before}
            for key, (rule, numbers) in before.items():
                if id(rule) in alive and rule.kind in fresh and not rule.shadow:
                    chosen.setdefault(key, (rule, numbers))
        for key in without:
            chosen.pop(key, None)
        return self._planned(chosen, tag)

    def _planned(self, chosen: dict[bytes, tuple[Rule, Shape]], tag: int) -> Plan:
        shapes = tuple(numbers for _, numbers in chosen.values())
        rules = [rule for rule, _ in chosen.values()]
        return _plan(rules, list(chosen), self._shapes.setdefault(shapes, shapes), tag)

    def _chosen(
        self, rules: Sequence[tuple[Rule, Shape]], subject: Subject, tag: int
    ) -> dict[bytes, tuple[Rule, Shape]]:
        """Counter -> its rule: of each name the first rule that applies."""
        names = set()
        found = {}
        for rule, numbers in rules:
            if rule.name not in names and rule.applies(subject):
                names.add(rule.name)
                found[self._layout.key(tag, counter(rule, subject))] = (rule, numbers)
        return found


def _plan(rules: Sequence[Rule], keys: Sequence[bytes], shapes: tuple[Shape, ...], tag: int) -> Plan:
    slots = tuple(index for index, rule in enumerate(rules) if rule.kind == "concurrency")
    return Plan(
        tuple(rules),
        tuple(keys),
        shapes,
        tag,
        slots,
        tuple((index, 4 + 3 * index, shapes[index][1]) for index, rule in enumerate(rules) if rule.kind == "tokens"),
        tuple(index for index, rule in enumerate(rules) if rule.shadow),
        tuple(0 if rule.kind == "tokens" else 1 for rule in rules),
        tuple((index, 0, 0) for index in slots),
        names=tuple(rule.name for rule in rules),
    )


def counter(rule: Rule, subject: Subject) -> str:
    """The name of a rule's counter. The limit is no part of it, so a changed limit keeps what was counted."""
    scope = ",".join(f"{one}={plain(one, getattr(subject, one))}" for one in rule.scope)
    per = "" if rule.kind == "concurrency" else f"{rule.per:g}"
    return f"{rule.kind[0]}{per}:{rule.name}:{scope}"


def plain(dimension: Dimension, value: str) -> str:
    """`value` as a part of a key: itself if it is short and harmless, else a digest. Unequal values stay unequal."""
    if dimension == "address" and ":" in value:
        try:
            network = int(IPv6Address(value.partition("%")[0])) >> 64
        except AddressValueError:
            pass
        else:
            if network:  # one subscriber holds a whole /64; ::ffff:0:0/96 is IPv4 and counts by the full address
                return f"{network:x}/64"
    if _PLAIN.fullmatch(value) and value[0] not in "/~":
        return value
    return "~" + blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def scaled(plan: Plan, replicas: int) -> Plan:
    """The plan that one of `replicas` processes enforces alone: the local rules of `plan`, each with
    ceil(limit / replicas)."""
    if plan.local is not None and plan.local[0] == replicas:
        return plan.local[1]
    kept = [index for index, rule in enumerate(plan.rules) if rule.on_redis_failure == "local"]
    rules = [plan.rules[index] for index in kept]
    shapes = tuple(shape(rule, -(-rule.limit // replicas)) for rule in rules)
    local = _plan(rules, [plan.keys[index] for index in kept], shapes, plan.tag)
    plan.local = (replicas, local)
    return local
