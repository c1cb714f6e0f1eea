"""Charges requests on limits, and writes the headers about limits for clients. Implements core.ports.Gate."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network
from math import ceil
from time import monotonic

from msgspec import Struct

from gateway.config import Config
from gateway.core.errors import Kind
from gateway.core.estimate import Cost
from gateway.core.http import Headers
from gateway.core.messages import QUESTIONS, Op
from gateway.core.ports import Permit as AnyPermit
from gateway.core.ports import RequestRecord
from gateway.ratelimit.addresses import Scope, client_address
from gateway.ratelimit.limiter import Limiter
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import Decision, Lease, Limited, LimitKind, Outcome, Plan, Subject, Verdict
from gateway.ratelimit.plan import Layout
from gateway.ratelimit.redis.store import RedisStore
from gateway.ratelimit.rules import KINDS, Limits, estimator
from gateway.redis import RedisSettings

_FREE = Cost()
_HEADERS: tuple[tuple[LimitKind, tuple[bytes, bytes, bytes]], ...] = tuple(
    (
        kind,
        (
            b"x-ratelimit-limit-" + kind.encode(),
            b"x-ratelimit-remaining-" + kind.encode(),
            b"x-ratelimit-reset-" + kind.encode(),
        ),
    )
    for kind in KINDS[:2]
)
"""(kind, OpenAI's names of its three headers). OpenAI has none for requests in flight."""


_HINT = ", or with a smaller cap on its output (such as max_tokens), which reserves less"
"""Added to a refusal by a token limit where the output is part of what the request reserves."""


OnChange = Callable[[str, str], None]
OnAlone = Callable[[int, float], None]


class Where(Struct, frozen=True):
    """Where the counters are stored. They survive a reload that does not change this."""

    settings: RedisSettings | None
    layout: Layout
    replicas: int

    @classmethod
    def of(cls, config: Config) -> Where:
        limiter = config.limiter
        shared = config.redis is not None and limiter.store != "memory"
        namespace = config.redis.namespace if config.redis is not None else Layout().namespace
        layout = Layout(namespace, limiter.partitions, limiter.partition_by)
        return cls(RedisSettings.of(config.redis) if shared else None, layout, limiter.replicas)


class Limiting:
    """The limiter of a running gateway. Implements core.ports.Gate. on_change and on_alone are those of `Limiter`."""

    def __init__(
        self,
        config: Config,
        limits: Limits,
        on_change: OnChange | None = None,
        on_alone: OnAlone | None = None,
    ) -> None:
        self._where = where = Where.of(config)
        store: MemoryStore | RedisStore = (
            MemoryStore()
            if where.settings is None
            else RedisStore(where.settings, layout=where.layout, expected=where.replicas)
        )
        self.limiter = Limiter((), store, on_change=on_change, on_alone=on_alone)
        self._running = False
        self._by_address = False
        self.use(config, limits)

    @classmethod
    def follow(
        cls,
        before: Limiting | None,
        config: Config,
        limits: Limits,
        on_change: OnChange | None = None,
        on_alone: OnAlone | None = None,
    ) -> Limiting | None:
        """The limiter for `config`; None without limits. It is `before`, which needs the new rules (`use`), unless the
        counters are stored elsewhere now."""
        if before is not None and before._where == Where.of(config):
            return before
        return cls(config, limits, on_change, on_alone) if limits.any else None

    def use(self, config: Config, limits: Limits) -> None:
        """limits: those of `config`."""
        self.limiter.use(limits.index)
        self._estimator = estimator(config)
        self._tokens = limits.tokens
        # A rule by address that a reload replaced is enforced for a while longer.
        self._by_address = self._by_address or limits.by_address
        self._trusted = [ip_network(one) for one in config.listen.trusted_proxies]

    async def start(self) -> None:
        if not self._running:
            self._running = True
            await self.limiter.start()

    async def close(self) -> None:
        if self._running:
            self._running = False
            await self.limiter.close()

    def cost(self, op: Op, max_context: int | None) -> Cost | None:
        """See core.ports.Gate. None for a question: it counts as a request, and uses no tokens of a model."""
        if type(op) in QUESTIONS:
            return None
        return self._estimator.cost(op, max_context) if self._tokens else _FREE

    async def admit(
        self,
        record: RequestRecord,
        cost: Cost | None,
        scope: Scope,
        headers: Headers,
        early: AnyPermit | None = None,
    ) -> Permit | None:
        """See core.ports.Gate."""
        address = client_address(scope, self._trusted) if self._by_address else None
        before = early.lease if isinstance(early, Permit) else None
        try:
            subject = Subject(record.key, record.team, record.model, address)
            lease = await self.limiter.reserve(subject, cost or _FREE, before)
        except Limited as limited:
            if before is not None:
                limited.decision.states = (*before.decision.states, *limited.decision.states)
            _refused(limited, record, headers)
            # Without `violated` it can never fit: its prompt alone is too long.
            rule, violated = limited.decision.rule, limited.decision.violated
            tokens = rule is not None and violated is not None and rule.kind == "tokens"
            if tokens and cost is not None and cost.prompt < cost.tokens:
                limited.message += _HINT
            raise
        plan, raw = (lease.plan, lease.raw) if before is None else _together(before, lease)
        for left, limit, name, reset in plan.told or _shown(plan, raw):
            ms = raw[left + 1] // 1000
            if ms != reset.ms:
                reset.ms, reset.header = ms, (reset.name, duration(ms))
            headers += (limit, (name, b"%d" % raw[left]), reset.header)
        return Permit(self.limiter, lease, cost or _FREE, cost is None, monotonic())

    async def admit_early(self, record: RequestRecord, scope: Scope, headers: Headers) -> Permit:
        """See core.ports.Gate."""
        address = client_address(scope, self._trusted) if self._by_address else None
        try:
            lease = await self.limiter.reserve_early(Subject(record.key, record.team, None, address))
        except Limited as limited:
            _refused(limited, record, headers)
            raise
        return Permit(self.limiter, lease, _FREE, early=True)


class _Reset(Struct):
    """The header that says when a counter is free again, and its milliseconds. It is kept, because all requests decided
    by one call to the store share it."""

    name: bytes
    ms: int = -1
    header: tuple[bytes, bytes] = (b"", b"")


_Shown = tuple[int, tuple[bytes, bytes], bytes, _Reset]
"""(index in a verdict of what remains, the header of the limit, the name of the header of what remains, its reset)."""


def _shown(plan: Plan, raw: Verdict) -> list[_Shown]:
    """The headers about the limits of `plan`: for each kind, those of the limit with the least remaining. If each kind
    has one limit, which is usual, the plan keeps the result."""
    found, kept = [], True
    for kind, (limit, remaining, reset) in _HEADERS:
        places = [
            (2 + 3 * index, (limit, b"%d" % plan.shapes[index][1]))
            for index, rule in enumerate(plan.rules)
            if rule.kind == kind and not rule.shadow
        ]
        if places:
            found.append((*min(places, key=lambda one: raw[one[0]]), remaining, _Reset(reset)))
        kept = kept and len(places) < 2
    if kept:
        plan.told = found
    return found


def _together(early: Lease, lease: Lease) -> tuple[Plan, Verdict]:
    """The plans and verdicts of one request that was admitted in two steps, for the headers."""
    one, other = early.plan, lease.plan
    plan = Plan((*one.rules, *other.rules), (*one.keys, *other.keys), (*one.shapes, *other.shapes))
    return plan, (-1, 0, *early.raw[2:], *lease.raw[2:])


def _refused(limited: Limited, record: RequestRecord, headers: Headers) -> None:
    record.limit, limited.code = limited.code, None
    _describe(limited.decision, headers)


def _describe(decision: Decision, headers: Headers) -> None:
    """The same headers for a refusal."""
    for kind, (limit, remaining, reset) in _HEADERS:
        state = decision.tightest(kind)
        if state is not None:
            headers.append((limit, b"%d" % state.limit))
            headers.append((remaining, b"%d" % state.remaining))
            headers.append((reset, duration(round(state.reset_s * 1000))))


class Permit(Struct, eq=False):
    """One admitted request. Implements core.ports.Permit. question: it uses no tokens. admitted: at which second.
    early: it was admitted before its body was read, and stays counted: reading took the time that the limit is to
    bound."""

    limiter: Limiter
    lease: Lease
    cost: Cost
    question: bool = False
    admitted: float = 0.0
    early: bool = False

    def settle(self, record: RequestRecord) -> None:
        """See core.ports.Permit."""
        lease = self.lease
        if self.early:
            self.limiter.settle(lease, None)
        elif not lease.settled:
            outcome = _OUTCOMES[record.outcome] if record.attempts else "unserved"
            used = 0 if self.question else _used(record, outcome, self.cost.prompt)
            if used is None:
                self.limiter.settle(lease, _at_most(self.cost, monotonic() - self.admitted), outcome, at_least=True)
            else:
                self.limiter.settle(lease, used, outcome)

    def withdraw(self) -> None:
        """See core.ports.Permit."""
        self.limiter.settle(self.lease, None, "unserved")


_OUTCOMES: dict[str, Outcome] = {
    "ok": "finished",
    "refused": "failed",
    "failed": "failed",
    "cancelled": "cancelled",
}


_UNSEEN = frozenset(["deadline_exceeded", Kind.TIMEOUT.value, "upstream_too_large"])
"""Failures after which nobody knows how much a worker produced. Clients can provoke them by a long or large reply."""


_FASTEST = 1000
"""Tokens a second of one output, more than engines on GPUs produce."""


def _at_most(cost: Cost, seconds: float) -> int:
    """The tokens of a request of which nobody counted any: all that it may use, or what a worker can produce in the
    `seconds` since it was admitted. The worker stops when the request ends. At least the reservation is charged, which
    is less than all that it may use where the limit is."""
    return min(cost.tokens, cost.prompt + cost.choices * ceil(seconds * _FASTEST))


def _used(record: RequestRecord, outcome: Outcome, prompt: int) -> int | None:
    """The tokens to charge; None is unknown.

    If the client of a plain reply leaves, or the reply takes too long or is too large, nobody knows what the worker
    produced. Such a request keeps its reservation, and may be charged more; otherwise clients could avoid every limit
    this way. A stream is
    relayed as it is produced, so one that its client left before the first token is charged its prompt. Any other
    failure without output costs nothing.
    """
    usage = record.usage
    if outcome == "failed" and (usage is None or not usage.output):
        return None if record.code in _UNSEEN else 0
    if usage is None or (usage.input is None and usage.output is None):
        return prompt if outcome == "cancelled" and record.stream else None
    return (usage.input or 0) + (usage.output or 0)


def duration(ms: int) -> bytes:
    """Milliseconds as OpenAI writes them: 0s, 20ms, 1.500s, 6m0s, 1h0m0s."""
    if 0 < ms < 1000:
        return b"%dms" % ms
    seconds, ms = divmod(ms, 1000)
    rest = b".%03ds" % ms if ms else b"s"
    if seconds < 60:
        return b"%d%b" % (seconds, rest)
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return b"%dm%d%b" % (minutes, seconds, rest)
    return b"%dh%dm%d%b" % (minutes // 60, minutes % 60, seconds, rest)
