"""Charges requests on limits, and writes the headers about limits for clients. Implements core.ports.RateLimiter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_network

from msgspec import UNSET, Struct
from msgspec.structs import replace

from gateway.config import Config, Redis
from gateway.core.estimate import Cost
from gateway.core.http import Headers
from gateway.core.messages import QUESTIONS, Op
from gateway.core.money import Rates
from gateway.core.ports import Charge, RequestRecord
from gateway.ratelimit.addresses import Scope, client_address
from gateway.ratelimit.kinds import KINDS
from gateway.ratelimit.limiter import FREE, OnBudget, SubjectLimiter
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import Limited, LimitHeaders, LimitState, Plan, Subject, tightest
from gateway.ratelimit.plan import Layout
from gateway.ratelimit.redis.leases import LeasingStore
from gateway.ratelimit.reservation import Reservation
from gateway.ratelimit.rules import Limits, estimator, key_rules

_HEADERS: dict[str, tuple[bytes, bytes, bytes]] = {
    kind: (
        b"x-ratelimit-limit-" + kind.encode(),
        b"x-ratelimit-remaining-" + kind.encode(),
        b"x-ratelimit-reset-" + kind.encode(),
    )
    for kind, what in KINDS.items()
    if what.shown
}
"""Kind -> OpenAI's names of its three headers. OpenAI has none for requests in flight."""


OnChange = Callable[[str, str], None]
OnAlone = Callable[[int, float], None]


class Where(Struct, frozen=True):
    """The place of the counters. They survive a reload that changes at most how long the store waits."""

    settings: Redis | None
    layout: Layout
    replicas: int

    @classmethod
    def of(cls, config: Config) -> Where:
        limiter = config.limiter
        shared = config.redis is not None and limiter.store != "memory"
        namespace = config.redis.namespace if config.redis is not None else Layout().namespace
        layout = Layout(namespace, limiter.partitions, limiter.partition_by)
        return cls(config.redis if shared else None, layout, limiter.replicas)


class HttpRateLimiter:
    """The limits of requests. Implements core.ports.RateLimiter. on_change, on_alone, on_budget: see
    `limiter.SubjectLimiter`."""

    def __init__(
        self,
        config: Config,
        limits: Limits,
        on_change: OnChange | None = None,
        on_alone: OnAlone | None = None,
        on_budget: OnBudget | None = None,
    ) -> None:
        where = Where.of(config)
        self._store: MemoryStore | LeasingStore = (
            MemoryStore()
            if where.settings is None
            else LeasingStore(where.settings, layout=where.layout, expected=where.replicas)
        )
        self.limiter = SubjectLimiter((), self._store, on_change=on_change, on_alone=on_alone, on_budget=on_budget)
        self._running = False
        self._by_address = False
        self.use(config, limits)

    def fits(self, config: Config) -> bool:
        """Whether the counters of `config` are where those of this limiter are: then it needs the new rules (`use`)."""
        own, other = self._where, Where.of(config)
        if own.settings is not None and other.settings is not None:
            patient = {"timeout_s": other.settings.timeout_s}
            own = replace(own, settings=own.settings.model_copy(update=patient))
        return own == other

    def use(self, config: Config, limits: Limits) -> None:
        """limits: those of `config`, which `fits`."""
        self._where = where = Where.of(config)
        if where.settings is not None and isinstance(self._store, LeasingStore):
            self._store.use(where.settings)
        self._limits = limits
        self.limiter.use(limits.index)
        self._estimator = estimator(config)
        self._measured = limits.measured
        self._spend = config.spend
        self._reserve = config.limiter.reserve
        self._forms = limits.forms
        self._described = self._forms.further
        # A rule by address that a reload replaced is enforced for a while longer.
        self._by_address = self._by_address or limits.by_address
        self._trusted = [ip_network(one) for one in config.listen.trusted_proxies]

    def own(self, key: str, limits: object) -> None:
        """The limits of a key of the store; None for none."""
        found = key_rules(key, limits, self._spend, self._reserve)
        self._measured = self._measured or any(KINDS[rule.kind].measured for rule in found)
        self.limiter.own(key, found)

    def own_of_team(self, name: str, team: object) -> None:
        """The limits of a team of the store; None for none."""
        found = self._limits.of_team(name, team)
        self._measured = self._measured or any(KINDS[rule.kind].measured for _, rule in found)
        self.limiter.own_of_team(name, found)

    async def start(self) -> None:
        if not self._running:
            self._running = True
            await self.limiter.start()

    async def close(self) -> None:
        if self._running:
            self._running = False
            await self.limiter.close()

    def cost(self, op: Op, max_context: int | None, rates: Rates | None) -> Cost | None:
        """See core.ports.RateLimiter. None for a question: it counts as a request, and uses no tokens of a model."""
        if type(op) in QUESTIONS:
            return None
        if not self._measured:
            return FREE
        cost = self._estimator.cost(op, max_context)
        return cost if rates is None else cost.priced(rates)

    def admit(
        self,
        record: RequestRecord,
        cost: Cost | None,
        scope: Scope,
        headers: Headers,
        charges: list[Charge],
    ) -> Awaitable[None] | None:
        """See core.ports.RateLimiter."""
        early = next((one for one in charges if isinstance(one, Reservation) and one.early), None) if charges else None
        address = client_address(scope, self._trusted) if self._by_address else None
        try:
            named = None if record.end_user is UNSET else record.end_user
            subject = Subject(record.key, record.team, record.model, address, named)
            made = self.limiter.begin(subject, cost, early)
        except Limited as limited:
            self._refuse(record, limited, cost, early, headers)
            raise
        if type(made) is not Reservation:
            return self._answered(made, record, cost, early, headers, charges)  # type: ignore[arg-type]  # a coroutine
        self._admitted(made, record, early, headers, charges)
        return None

    async def _answered(
        self,
        made: Awaitable[Reservation],
        record: RequestRecord,
        cost: Cost | None,
        early: Reservation | None,
        headers: Headers,
        charges: list[Charge],
    ) -> None:
        """Ends an admission that waits for the store."""
        try:
            self._admitted(await made, record, early, headers, charges)
        except Limited as limited:
            self._refuse(record, limited, cost, early, headers)
            raise

    def _admitted(
        self,
        made: Reservation,
        record: RequestRecord,
        early: Reservation | None,
        headers: Headers,
        charges: list[Charge],
    ) -> None:
        charges.append(made)
        known = made.plan.headers
        if not known or early is not None or record.dialect in self._described:
            if known is None:
                made.plan.headers = _known_headers(made.plan)
            self._describe(record, (*(early.states if early is not None else ()), *made.states), None, headers)
            return
        counters = made.verdict.counters
        last = -1
        for one in known:
            counted = counters[one.index]
            ms = counted.reset_us // 1000
            if ms != one.ms:
                if ms != last:  # limits of equal windows are free again at one time
                    last = ms
                    text = duration(ms)
                one.ms = ms
                one.resets = one.reset, text
            headers += (one.limit, (one.remaining, b"%d" % counted.remaining), one.resets)

    async def admit_early(self, record: RequestRecord, scope: Scope, headers: Headers, charges: list[Charge]) -> None:
        """See core.ports.RateLimiter."""
        address = client_address(scope, self._trusted) if self._by_address else None
        try:
            charges.append(await self.limiter.reserve(Subject(record.key, record.team, None, address), early=True))
        except Limited as limited:
            self._refused(record, limited, (), headers)
            raise

    def _refuse(
        self, record: RequestRecord, limited: Limited, cost: Cost | None, early: Reservation | None, headers: Headers
    ) -> None:
        self._refused(record, limited, () if early is None else early.states, headers)
        state = limited.violated  # without one it can never fit: the message says why
        if state is not None and cost is not None:
            limited.message += KINDS[state.rule.kind].advice(cost, state.remaining)

    def _refused(self, record: RequestRecord, limited: Limited, before: Sequence[LimitState], headers: Headers) -> None:
        record.limit, limited.code = limited.code, None
        self._describe(record, (*before, *limited.states), limited, headers)

    def _describe(
        self, record: RequestRecord, states: Sequence[LimitState], limited: Limited | None, headers: Headers
    ) -> None:
        if self._forms.common:
            _describe(states, headers)
        self._forms.write(record.dialect, states, limited, headers)


def _known_headers(plan: Plan) -> Sequence[LimitHeaders]:
    """The parts of the headers about the limits of `plan` that no verdict changes. Empty if a kind has several limits:
    then each verdict decides which of them the headers are about."""
    found = []
    for kind, (limit, remaining, reset) in _HEADERS.items():
        indexes = [index for index, rule in enumerate(plan.rules) if rule.kind == kind and not rule.shadow]
        if len(indexes) > 1:
            return ()
        for index in indexes:
            found.append(LimitHeaders(index, (limit, b"%d" % plan.shapes[index].limit), remaining, reset))
    return found


def _describe(states: Sequence[LimitState], headers: Headers) -> None:
    """Writes the headers about the limit of each kind with the least remaining."""
    for kind, (limit, remaining, reset) in _HEADERS.items():
        state = tightest(states, kind)
        if state is not None:
            headers += (
                (limit, b"%d" % state.limit),
                (remaining, b"%d" % state.remaining),
                (reset, duration(round(state.reset_s * 1000))),
            )


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
