"""The counters of a subject: which rules apply, and under which keys. Computed once for each subject."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from ipaddress import AddressValueError, IPv6Address
from operator import itemgetter
from zlib import crc32

from msgspec import Struct

from gateway.config import Limit
from gateway.config.sharing import Dimension, KindOfLimit
from gateway.core.key_kind import KeyKind
from gateway.ratelimit.kinds import KINDS, BudgetRule
from gateway.ratelimit.model import DIMENSIONS, Plan, Subject
from gateway.ratelimit.window import Shape

HEARTBEATS = KeyKind("{NAMESPACE:PARTITION}:replicas", saved=False)
"""The gateways that run and count in this partition."""
KEY_KINDS = (
    HEARTBEATS,
    KeyKind("{NAMESPACE:PARTITION}:replicas:probe", saved=False),
    KeyKind("{NAMESPACE:PARTITION}:c:LIMIT:SCOPE", saved=False),  # slots of requests that run
    KeyKind("{NAMESPACE:PARTITION}:COUNTER:LIMIT:SCOPE"),  # COUNTER is `LimitKind.counter`
)
REMEMBERED = 16_384
_BY_BODY = frozenset({"model", "end_user"})
_PLAIN = re.compile(r"[A-Za-z0-9_.:@/-]{1,64}")


class Layout(Struct, frozen=True):
    """The names of a store's counters. All counters of one request are in one hash slot, so that a Redis Cluster can
    decide them in one step.

    namespace     separates deployments on one Redis: letters, digits, `_ . -`
    partitions    hash slots in use. 1 puts every counter in one slot, that is on one shard of a cluster, and allows
                  every scope. With more, every rule must have `partition_by` in its scope
    partition_by  the dimension whose value chooses the slot
    """

    namespace: str = "dragoman"
    partitions: int = 1
    partition_by: Dimension | None = None

    def tag(self, subject: Subject) -> int:
        if self.partitions == 1 or self.partition_by is None:
            return 0
        return crc32((getattr(subject, self.partition_by) or "").encode("utf-8", "surrogatepass")) % self.partitions

    def key(self, tag: int, name: str) -> bytes:
        return f"{{{self.namespace}:{tag}}}:{name}".encode()


Shaped = tuple[float, Limit, Shape]
"""A rule, its position among all rules, and its numbers."""


class RuleIndex:
    """Rules, found by subject without a look at those of other subjects: a configuration may hold one for each of
    thousands of keys. Making it takes time in proportion to the rules, so a reload makes it in a thread.

    longest  kind -> the longest window among the rules
    windows  every (kind, window) among the rules
    late     names of limits of which a rule depends on what the body names: the model, the end user
    calendars  those of budgets
    end_users  some budget is that of single end users
    """

    def __init__(self, rules: Sequence[Limit]) -> None:
        self.rules = tuple(rules)
        self.longest: dict[KindOfLimit, float] = {}
        self.windows: set[tuple[KindOfLimit, float]] = set()
        self.late: set[str] = set()
        self.calendars = {rule.calendar for rule in self.rules if isinstance(rule, BudgetRule)}
        self.end_users = any("end_user" in rule.scope for rule in self.rules if isinstance(rule, BudgetRule))
        self._general: list[Shaped] = []
        self._matching: dict[tuple[Dimension, str], list[Shaped]] = {}
        self._own: dict[str, list[Shaped]] = {}
        self._of_team: dict[str, list[Shaped]] = {}
        for position, rule in enumerate(self.rules):
            self.longest[rule.kind] = max(self.longest.get(rule.kind, 0.0), rule.per_s)
            self.windows.add((rule.kind, rule.per_s))
            if not _BY_BODY.isdisjoint((*rule.scope, *rule.match)):
                self.late.add(rule.name)
            shaped = (position, rule, KINDS[rule.kind].shape(rule, rule.limit))
            for dimension, values in rule.match.items():
                for value in dict.fromkeys(values):
                    self._matching.setdefault((dimension, value), []).append(shaped)
                break  # one dimension finds it; `applies` looks at all
            else:
                self._general.append(shaped)

    @classmethod
    def of(cls, rules: Sequence[Limit] | RuleIndex) -> RuleIndex:
        return rules if isinstance(rules, RuleIndex) else cls(rules)

    def own(self, key: str, rules: Sequence[Limit]) -> bool:
        """Replaces the rules of one key of the store. They come first, as those of the other keys do. Returns whether
        that changes something."""
        return self._replace(self._own, key, [(-1.0, rule) for rule in rules])

    def own_of_team(self, team: str, rules: Sequence[tuple[float, Limit]]) -> bool:
        """As `own`, the rules of one team of the store, each with its position among all rules."""
        return self._replace(self._of_team, team, rules)

    def _replace(self, own: dict[str, list[Shaped]], name: str, rules: Sequence[tuple[float, Limit]]) -> bool:
        shaped = [(position, rule, KINDS[rule.kind].shape(rule, rule.limit)) for position, rule in rules]
        before = own.pop(name, [])
        if shaped:
            own[name] = shaped
        self.calendars |= {rule.calendar for _, rule in rules if isinstance(rule, BudgetRule)}
        return shaped != before

    def candidates(self, subject: Subject) -> Sequence[Shaped]:
        """Those rules that may apply to `subject`, in their order."""
        found = [
            shaped
            for dimension in DIMENSIONS
            for shaped in self._matching.get((dimension, getattr(subject, dimension)), ())
        ]
        found += self._own.get(subject.key or "", ())
        found += self._of_team.get(subject.team or "", ())
        return sorted([*found, *self._general], key=itemgetter(0)) if found else self._general


class Replaced:
    """The rules before a reload, and until when their counters are enforced beside the new counter of a rule of the
    same kind. Times are monotonic seconds.

    slots_s  how long that is for rules of concurrency, in seconds
    ends     the times at which it ends for some of the rules, ascending
    """

    def __init__(self, index: RuleIndex, new: RuleIndex, now: float, slots_s: float) -> None:
        self.index = index
        self._longest, self._since, self._slots_s = new.longest, now, slots_s
        self.ends = sorted({self._until(kind, per) for kind, per in index.windows})

    def until(self, rule: Limit) -> float:
        return self._until(rule.kind, rule.per_s)

    def _until(self, kind: KindOfLimit, per: float) -> float:
        return self._since + (self._slots_s if KINDS[kind].in_flight else min(per, self._longest.get(kind, 0.0)))


class Plans:
    """The plans of all subjects, cached. now: the replaced rules are those that are still enforced then."""

    def __init__(
        self, rules: Sequence[Limit] | RuleIndex, layout: Layout, replaced: Sequence[Replaced] = (), now: float = 0.0
    ) -> None:
        self._index = RuleIndex.of(rules)
        self._replaced = replaced
        self._now = now
        self._layout = layout
        # The subject, or (subject, the counters that are left out).
        self._known: dict[object, Plan] = {}
        self._shapes: dict[tuple[Shape, ...], tuple[Shape, ...]] = {}  # equal ones are one object: they travel once

    def of(self, subject: Subject, without: tuple[bytes, ...] = ()) -> Plan:
        """without: counters that `early` had."""
        known = (subject, without) if without else subject
        return self._known.get(known) or self._keep(known, self._make(subject, without))

    def early(self, subject: Subject) -> Plan:
        """The counters that can be charged before the body is read, whatever model it names: those of requests and
        concurrency, unless a limit of their name is one for models or end users. subject: without those."""
        tag = self._layout.tag(subject)
        known = (subject, None)
        plan = self._known.get(known)
        if plan is None:
            late = self._index.late
            early = [
                shaped
                for shaped in self._index.candidates(subject)
                if not KINDS[shaped[1].kind].measured and shaped[1].name not in late
            ]
            plan = self._keep(known, self._planned(self._chosen(early, subject, tag), subject, tag))
        return plan

    def _keep(self, known: object, plan: Plan) -> Plan:
        if len(self._known) >= REMEMBERED:  # the oldest half, so that a flood of strangers costs little
            for old in list(self._known)[: REMEMBERED // 2]:
                del self._known[old]
        self._known[known] = plan
        return plan

    def _make(self, subject: Subject, without: tuple[bytes, ...]) -> Plan:
        tag = self._layout.tag(subject)
        chosen = self._chosen(self._index.candidates(subject), subject, tag)
        for old in self._replaced:
            before = self._chosen(old.index.candidates(subject), subject, tag)
            # A kind of limit that has a new counter since the reload.
            fresh = {rule.kind for key, (rule, _) in chosen.items() if key not in before}
            for key, (rule, numbers) in before.items():
                if old.until(rule) > self._now and rule.kind in fresh and not rule.shadow:
                    chosen.setdefault(key, (rule, numbers))
        for key in without:
            chosen.pop(key, None)
        return self._planned(chosen, subject, tag)

    def _planned(self, chosen: dict[bytes, tuple[Limit, Shape]], subject: Subject, tag: int) -> Plan:
        shapes = tuple(numbers for _, numbers in chosen.values())
        rules = [rule for rule, _ in chosen.values()]
        before = {
            key: self._layout.key(tag, name)
            for key, (rule, _) in chosen.items()
            if (name := counter_before(rule, subject)) is not None
        }
        return Plan.of(rules, list(chosen), self._shapes.setdefault(shapes, shapes), tag, before)

    def _chosen(self, rules: Sequence[Shaped], subject: Subject, tag: int) -> dict[bytes, tuple[Limit, Shape]]:
        """Counter -> its rule: of each name the first rule that applies."""
        names = set()
        found = {}
        for _, rule, numbers in rules:
            if rule.name not in names and applies(rule, subject):
                names.add(rule.name)
                found[self._layout.key(tag, counter(rule, subject))] = (rule, numbers)
        return found


def counter(rule: Limit, subject: Subject) -> str:
    """The name of a rule's counter. The number of the limit is left out, so a changed limit keeps what was counted."""
    return _named(KINDS[rule.kind].counter(rule), rule, subject)


def counter_before(rule: Limit, subject: Subject) -> str | None:
    """The name of the counter whose debt that one begins with."""
    begins = KINDS[rule.kind].counter_before(rule)
    return None if begins is None else _named(begins, rule, subject)


def _named(begins: str, rule: Limit, subject: Subject) -> str:
    scope = ",".join(f"{one}={plain(one, getattr(subject, one))}" for one in rule.scope)
    return f"{begins}:{rule.name}:{scope}"


def applies(rule: Limit, subject: Subject) -> bool:
    if any(getattr(subject, one) is None for one in rule.scope):
        return False
    return all(getattr(subject, one) in values for one, values in rule.match.items())


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
    indexes = [index for index, rule in enumerate(plan.rules) if rule.on_redis_failure == "local"]
    rules = [plan.rules[index] for index in indexes]
    shapes = tuple(KINDS[rule.kind].shape(rule, -(-rule.limit // replicas)) for rule in rules)
    before = dict(zip([plan.keys[index] for index in plan.sums], plan.before, strict=True))
    local = Plan.of(rules, [plan.keys[index] for index in indexes], shapes, plan.tag, before)
    plan.local = (replicas, local)
    return local
