"""Limits as configured, put before requests: `gateway.limits` counts, this says what is counted and tells the client.

Composition: sees configuration and limits, and is what the pipeline knows as `core.ports.Gate`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from msgspec import Struct

from gateway.config import Config, Redis
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.ports import RequestRecord
from gateway.limits import Cost, Decision, Estimator, Lease, Limited, Limiter, MemoryStore, Outcome, Rule, Subject
from gateway.limits.model import Dimension, LimitKind, Plan, RuleState, Verdict
from gateway.limits.plan import Layout
from gateway.limits.store_redis import RedisSettings, RedisStore

_FREE = Cost()
_MOST_PROXIES = 16
_KINDS: tuple[LimitKind, ...] = ("requests", "tokens", "concurrency")
_HEADERS: tuple[tuple[LimitKind, tuple[bytes, bytes, bytes]], ...] = tuple(
    (
        kind,
        (
            b"x-ratelimit-limit-" + kind.encode(),
            b"x-ratelimit-remaining-" + kind.encode(),
            b"x-ratelimit-reset-" + kind.encode(),
        ),
    )
    for kind in _KINDS[:2]
)
"""OpenAI's names; it has none for requests in flight."""

Scope = MutableMapping[str, Any]


def rules(config: Config) -> list[Rule]:
    """The limits of `config` in the order in which they are looked at: those of single keys are exceptions and come
    first."""
    found = []
    for name, key in config.keys.items():
        for kind in _KINDS:
            limit = getattr(key.limits, kind, None)
            if limit is not None:
                found.append(Rule(name=kind, kind=kind, limit=limit, scope=("key",), match={"key": (name,)}))
    for one in config.limits:
        match = {
            dimension: tuple(_as_counted(config, dimension, value) for value in values)
            for dimension, values in one.match.items()
        }
        found.append(
            Rule(
                name=one.name,
                kind=one.kind,
                limit=one.limit,
                per=one.per_s,
                burst=one.burst,
                scope=one.scope,
                match=match,
                shadow=one.shadow,
                on_redis_failure=one.on_redis_failure,
            )
        )
    return found


def _as_counted(config: Config, dimension: Dimension, value: str) -> str:
    """What a rule matches, as requests have it: an alias's model, an address in its one canonical form."""
    if dimension == "model":
        return config.resolve(value) or value
    return str(ip_address(value)) if dimension == "address" else value


def redis_settings(redis: Redis | None) -> RedisSettings:
    """The section `redis`, which must be there, in the words of the store."""
    assert redis is not None
    server = redis.server
    return RedisSettings(
        addresses=server.addresses,
        mode=redis.mode,
        sentinel_name=redis.sentinel_name,
        sentinel_auth=redis.sentinel_auth,
        db=server.db,
        username=server.username,
        password=server.password,
        password_file=redis.password_file,
        tls=server.tls,
        ca_file=redis.ca_file,
        cert_file=redis.cert_file,
        key_file=redis.key_file,
        timeout=redis.timeout_s,
    )


def estimator(config: Config) -> Estimator:
    """What guesses tokens that nobody has counted."""
    limiter = config.limiter
    return Estimator(limiter.bytes_per_token, limiter.image_tokens, output=limiter.output_tokens)


class _Store(Struct, frozen=True):
    """What decides where counters lie; while it stays the same they survive a reload."""

    settings: RedisSettings | None
    layout: Layout
    replicas: int

    @classmethod
    def of(cls, config: Config) -> _Store:
        limiter = config.limiter
        shared = config.redis is not None and limiter.store != "memory"
        layout = Layout(limiter.namespace, limiter.partitions, limiter.partition_by)
        return cls(redis_settings(config.redis) if shared else None, layout, limiter.replicas)


class Limiting:
    """The limiter of a running gateway. Implements core.ports.Gate.

    on_change  called with ("strict" | "degraded", reason), see `Limiter`
    """

    def __init__(self, config: Config, on_change: Callable[[str, str], None] | None = None) -> None:
        self._where = where = _Store.of(config)
        store: MemoryStore | RedisStore = (
            MemoryStore()
            if where.settings is None
            else RedisStore(where.settings, layout=where.layout, expected=where.replicas)
        )
        self.limiter = Limiter((), store, on_change=on_change)
        self._running = False
        self.use(config)

    @classmethod
    def follow(
        cls, before: Limiting | None, config: Config, on_change: Callable[[str, str], None] | None = None
    ) -> Limiting | None:
        """What limits under `config`: `before`, told of it, unless the counters lie elsewhere now; None without
        limits."""
        if before is not None and before._where == _Store.of(config):
            before.use(config)
            return before
        return cls(config, on_change) if rules(config) else None

    def use(self, config: Config) -> None:
        found = rules(config)
        self.limiter.use(found)
        self.any = bool(found)
        self._estimator = estimator(config)
        self._tokens = any(rule.kind == "tokens" for rule in found)
        self._by_address = any("address" in rule.scope or "address" in rule.match for rule in found)
        self._trusted = [ip_network(one) for one in config.listen.trusted_proxies]

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port of where the counters lie; none for this process's own memory."""
        return self._where.settings.addresses if self._where.settings is not None else ()

    async def start(self) -> None:
        if not self._running:
            self._running = True
            await self.limiter.start()

    async def close(self) -> None:
        if self._running:
            self._running = False
            await self.limiter.close()

    async def admit(
        self, record: RequestRecord, op: Op, max_context: int | None, scope: Scope, headers: Headers
    ) -> Permit | None:
        """See core.ports.Gate."""
        address = client_address(scope, self._trusted) if self._by_address else None
        cost = self._estimator.cost(op, max_context) if self._tokens else _FREE
        try:
            lease = await self.limiter.reserve(Subject(record.key, record.team, record.model, address), cost)
        except Limited as limited:
            record.limit, limited.code = limited.code, None
            _tell(limited.decision, headers)
            raise
        plan, raw = lease.plan, lease.raw
        for left, limit, name, told in plan.told or _told(plan, raw):
            reset = raw[left + 1] // 1000
            if reset != told.reset:
                told.tell(reset)
            headers += (limit, (name, b"%d" % raw[left]), told.header)
        return Permit(self.limiter, lease)


class _Reset(Struct):
    """When one counter is whole again, as last told: in milliseconds, and the header, which all that one call decided
    share."""

    name: bytes
    reset: int = -1
    header: tuple[bytes, bytes] = (b"", b"")

    def tell(self, reset: int) -> None:
        self.reset, self.header = reset, (self.name, duration(reset))


_Told = tuple[int, tuple[bytes, bytes], bytes, _Reset]
"""(place of what is left in a verdict, the header of the limit, the name of that of what is left, its reset)."""


def _told(plan: Plan, raw: Verdict) -> list[_Told]:
    """What clients are told of the limits of `plan`: of each kind of that with the least left. Nearly always there is
    one of each, and the plan keeps what is found."""
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


def _tell(stands: Decision, headers: Headers) -> None:
    for kind, (limit, remaining, reset) in _HEADERS:
        state = stands.tightest(kind)
        if state is not None:
            headers.append((limit, b"%d" % state.limit))
            headers.append((remaining, b"%d" % state.remaining))
            headers.append((reset, duration(round(state.reset_s * 1000))))


class Permit(Struct, eq=False):
    """One admitted request. Implements core.ports.Permit."""

    limiter: Limiter
    lease: Lease

    def settle(self, record: RequestRecord) -> None:
        """See core.ports.Permit."""
        lease = self.lease
        if not lease.settled:
            outcome = _OUTCOMES[record.outcome] if record.attempts else "unserved"
            self.limiter.settle(lease, _used(record, outcome), outcome)


_OUTCOMES: dict[str, Outcome] = {
    "ok": "finished",
    "refused": "failed",
    "failed": "failed",
    "cancelled": "cancelled",
}


_UNSEEN = frozenset(["deadline_exceeded", Kind.TIMEOUT.value, "upstream_too_large"])
"""Failures by which a worker's work stays unseen. How long and how large a reply is, clients decide too."""


def _used(record: RequestRecord, outcome: Outcome) -> int | None:
    """Tokens to be charged, None for those reserved.

    Nobody knows what a worker made of a plain reply whose client left, or that took too long or was too large: those
    keep their reservation, or asking so would be a way around every limit. What else failed with nothing to show costs
    nothing.
    """
    usage = record.usage
    if outcome == "failed" and (usage is None or not usage.output):
        return None if record.code in _UNSEEN else 0
    if usage is None:
        return None
    if usage.input is None and usage.output is None:
        return None
    return (usage.input or 0) + (usage.output or 0)


def client_address(scope: Scope, trusted: list[Any]) -> str | None:
    """Who connected; behind proxies of ours, whoever the first of them that is not trusted says it was.

    X-Forwarded-For is read from its end, where our own proxy wrote, and only as far as the addresses are trusted: a
    few, as a client inside a trusted network could write thousands.
    """
    client = scope.get("client")
    if client is None:
        return None
    address: str = client[0]
    if not trusted:
        return address
    written = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
    entries = written.decode("latin-1").rsplit(",", _MOST_PROXIES)[-_MOST_PROXIES:] if written else []
    for one in reversed(entries):
        if not _within(address, trusted):
            break
        found = _forwarded(one.strip())
        if found is None:
            break
        address = found
    return address


def _forwarded(text: str) -> str | None:
    """The address in an entry of X-Forwarded-For, which some proxies write with its port (Azure's gateways, AWS's where
    told so): `192.0.2.1:4711`, `[2001:db8::1]:4711`. None where there is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None


def _within(address: str, networks: list[Any]) -> bool:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None) or found
    return any(mapped in network for network in networks)


def duration(ms: int) -> bytes:
    """As OpenAI writes it: 0s, 20ms, 1.500s, 6m0s, 1h0m0s."""
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


def unseen(config: Config, subject: Subject) -> list[str]:
    """Which limits of `config` `table` did not look at, for it was told too little of whom; one sentence each."""
    found = []
    # A key says itself whether it has a team; a token may bring any.
    alone = subject.key in config.keys and subject.team is None
    for rule in rules(config):
        missing = [
            one
            for one in ("key", "team", "address")
            if (one in rule.scope or one in rule.match) and getattr(subject, one) is None
        ]
        wanted = [f"--{one}" for one in missing]
        counted = f"counts by {', '.join(rule.scope)}" if rule.scope else "counts all together"
        if alone and "team" in missing:
            found.append(f"limit '{rule.name}' {counted}: it does not apply to key {subject.key}, which has no team")
        elif wanted:
            found.append(f"limit '{rule.name}' {counted}: to see it, give {' and '.join(wanted)}")
    return list(dict.fromkeys(found))


async def table(config: Config, subjects: Sequence[Subject], *, forget: bool = False) -> list[str]:
    """How the limits of `subjects` stand in Redis, as lines for a terminal; with `forget` their counters are dropped
    before. Raises GatewayError, which says where Redis was looked for and what was met there, while it is down."""
    limiting = Limiting(config)
    limiter = limiting.limiter
    await limiter.connect()
    try:
        rows: dict[tuple[str, str], RuleState] = {}
        for subject in subjects:
            if forget:
                await limiter.reset(subject)
            for state in (await limiter.inspect(subject)).states:
                whom = ", ".join(f"{one} {getattr(subject, one)}" for one in state.rule.scope) or "all"
                rows.setdefault((state.rule.name, whom), state)
    except GatewayError as error:
        where = ", ".join(limiting.addresses)
        raise GatewayError(error.kind, f"{error.message}: {where}: {error.__cause__ or limiter.reason}") from None
    finally:
        await limiter.close()
    if not rows:
        known = [f"{one} {value}" for one in ("key", "team", "address") if (value := getattr(subjects[0], one))]
        return [f"no limit applies to {' of '.join(known) or 'requests of whom nothing is known'}"]
    lines = [("limit", "of", "used", "left", "whole in")]
    for (name, whom), state in rows.items():
        name += " (shadow)" if state.rule.shadow else ""
        lines.append(
            (name, whom, str(state.used), str(state.remaining), duration(round(state.reset_s * 1000)).decode())
        )
    wide = [max(len(line[column]) for line in lines) for column in range(5)]
    return [
        f"{name:{wide[0]}}  {whom:{wide[1]}}  {used:>{wide[2]}}  {left:>{wide[3]}}  {reset:>{wide[4]}}"
        for name, whom, used, left, reset in lines
    ]
