"""Prometheus metrics of the gateway. Label values come from configuration and closed sets only, never from a client.

Per request only plain numbers are added up; prometheus-client turns them into metrics when it is scraped. (Its own
counters and histograms cost some 10 µs a request, a tenth of all that a request may cost.)
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, product
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import UNSET
from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.core import Metric

from gateway.core.figures import ConnectionCounts, Histogram
from gateway.core.ports import RequestRecord
from gateway.core.written import Moment
from gateway.observe import exposition
from gateway.observe.by_key import ByKey
from gateway.observe.catalogue import FIGURES
from gateway.observe.exposition import family
from gateway.observe.genai import GenAi
from gateway.observe.process_group import ProcessGroup

_TOGETHER = 256
_OUTCOMES = ("ok", "refused", "failed", "cancelled")
MOST_TEAMS = 100
"""Teams that have series of their own; the rest together are `other`."""

# Without this the library adds a gauge `..._created` beside each of its own counters.
disable_created_metrics()  # type: ignore[no-untyped-call]


class _Times:
    """The durations of the requests of one dialect and model, in seconds."""

    __slots__ = ("added", "first", "recent", "whole")

    def __init__(self) -> None:
        self.recent: tuple[list[float], list[float], list[float]] = ([], [], [])  # not in the histograms yet
        self.whole = exposition.new_histogram("dragoman_request_duration_seconds")
        self.added = exposition.new_histogram("dragoman_added_seconds")
        self.first = exposition.new_histogram("dragoman_time_to_first_token_seconds")

    def add_up(self) -> None:
        for histogram, seconds in zip((self.whole, self.added, self.first), self.recent, strict=True):
            if seconds:
                histogram.add_all(seconds)
                seconds.clear()


class _Series:
    """The sums of all requests with the same labels. A request costs one look-up and a few additions."""

    __slots__ = ("cost", "count", "dropped", "input", "key", "output", "times")

    def __init__(self, key: _Key, times: _Times) -> None:
        self.key = key
        self.times = times
        self.count = 0
        self.input = 0
        self.output = 0
        self.dropped = 0
        self.cost = 0


class _Key(NamedTuple):
    dialect: str
    operation: str
    model: str
    status: int
    outcome: str
    team: str | None
    phase: str | None
    source: str | None


_labels = attrgetter(*_Key._fields[:-1])


class Metrics:
    """registry is what `/metrics` shows; other rooms may add collectors of their own to it.

    genai, top_keys  see `config.serving.Metrics`; may be changed at any time
    shared  other processes show the same page
    alias   of the name by which a model was asked for: the alias of the configuration that covers it, or None
    gaps   of a model: seconds between two pieces of output of its streams
    waits  of a model: seconds that requests waited for a worker
    guard_seconds  of a guard and a stage: seconds until it had answered
    connections    to the workers of a model
    """

    def __init__(self, genai: bool = False, top_keys: int = 0, shared: bool = False) -> None:
        self.registry = registry = CollectorRegistry()
        self.ready = _gauge("dragoman_worker_ready", registry)
        self.ejected = _counter("dragoman_worker_ejections_total", registry)
        self.stalls = _counter("dragoman_worker_stalls_total", registry)
        self.draining = _gauge("dragoman_draining", registry)
        self.reloads = _counter("dragoman_reloads_total", registry)
        self.bugs = _counter("dragoman_bugs_total", registry)
        self.refused = _counter("dragoman_refused_connections_total", registry)
        self.retries = _counter("dragoman_retries_total", registry)
        self.moved = _counter("dragoman_moved_total", registry)
        self.continued = _counter("dragoman_continued_total", registry)
        self.not_continued = _counter("dragoman_not_continued_total", registry)
        self.continue_bytes = _gauge("dragoman_kept_bytes", registry)
        self.shed = _counter("dragoman_shed_requests_total", registry)
        self.hedges = _counter("dragoman_hedges_total", registry)
        self.tool_calls = _counter("dragoman_tool_calls_total", registry)
        self.cache_requests = _counter("dragoman_reply_cache_requests_total", registry)
        self.cache_saved = _counter("dragoman_reply_cache_saved_tokens_total", registry)
        self.cache_errors = _counter("dragoman_reply_cache_errors_total", registry)
        self.cache_bytes = _gauge("dragoman_reply_cache_bytes", registry)
        self.prompts = _counter("dragoman_logged_prompts_total", registry)
        self.prompts_waiting = _gauge("dragoman_logged_prompts_waiting_bytes", registry)
        self.guard_checks = _counter("dragoman_guard_checks_total", registry)
        self.mirrored = _counter("dragoman_mirrored_requests_total", registry)
        self.quarantined = _counter("dragoman_quarantined_requests_total", registry)
        self.prefills = _counter("dragoman_prefills_total", registry)
        self.budgets = _counter("dragoman_budget_passed_total", registry)
        self.batch_lines = _counter("dragoman_batch_lines_total", registry)
        self.queue_refused = _counter("dragoman_queue_refused_total", registry)
        # Prometheus sees an increase only from a value that it has read before: what alerts watch begins at 0.
        for counter, values in (
            (self.reloads, ("done", "refused")),
            (self.refused, ("400", "408", "431", "503")),
            (self.shed, ("lag", "streams", "connections")),
            (self.prompts, ("written", "dropped", "failed")),
        ):
            for value in values:
                counter.labels(value)
        self._models: dict[str, None] = {}
        self._running: dict[str, int] = {}
        self._pending: list[RequestRecord] = []
        self._series: dict[tuple[Any, ...], _Series] = {}
        self._times: dict[tuple[str, str], _Times] = {}
        self._teams: set[str] = set()
        self._routed: dict[tuple[str, str, str], int] = {}
        self._aliases: dict[tuple[str, str], int] = {}
        self.alias: Callable[[str], str | None] = lambda name: None
        self._shared = shared
        self._genai: GenAi | None = None
        self._by_key: ByKey | None = None
        self.configure(genai, top_keys)
        self.gaps = defaultdict[str, Histogram](
            partial(exposition.new_histogram, "dragoman_inter_token_latency_seconds")
        )
        self.waits = defaultdict[str, Histogram](partial(exposition.new_histogram, "dragoman_queue_wait_seconds"))
        self.guard_seconds = defaultdict[tuple[str, str], Histogram](
            partial(exposition.new_histogram, "dragoman_guard_seconds")
        )
        self.connections = defaultdict[str, ConnectionCounts](ConnectionCounts)
        self.loop_lag = exposition.new_histogram("dragoman_loop_lag_seconds")
        registry.register(self)

    def configure(self, genai: bool, top_keys: int = 0) -> None:
        """From now on; see the class."""
        self._count()
        if not genai:
            self._genai = None
        elif self._genai is None:
            self._genai = GenAi()
        if not top_keys:
            self._by_key = None
        elif self._by_key is None:
            self._by_key = ByKey(top_keys, self._shared)
        else:
            self._by_key.most = top_keys

    # -- numbers that other rooms add to; they outlive a reload ----------------------------------------------------

    def serves(self, model: str) -> None:
        """Shows what alerts watch of `model`, which is configured, before its first request."""
        self._models[model] = None
        self.retries.labels(model)
        self.quarantined.labels(model)

    def budget_passed(self, budget: str, share: float, shadow: bool, times: int = 1) -> None:
        """times: 0 shows the series before its first event."""
        self.budgets.labels(budget, f"{share:g}", str(shadow).lower()).inc(times)

    def worker(self, model: str, address: str, ready: bool) -> None:
        """Shows whether a worker is ready, and how often it was ejected or stalled, once it is known."""
        self.ready.labels(model, address).set(ready)
        self.ejected.labels(model, address)
        self.stalls.labels(model, address)

    def worker_left(self, model: str, address: str) -> None:
        """Shows nothing more of a worker."""
        self.ready.remove(model, address)
        self.ejected.remove(model, address)
        self.stalls.remove(model, address)

    # -- requests ---------------------------------------------------------------------------------------------------

    def begun(self, dialect: str) -> None:
        self._running[dialect] = self._running.get(dialect, 0) + 1

    def finished(self, record: RequestRecord) -> None:
        self._running[record.dialect] -= 1
        if record.trace is not None and not record.time:
            record.time = Moment(time.time())  # an exemplar has its moment
        self._pending.append(record)
        if len(self._pending) >= _TOGETHER:
            self._count()

    def _count(self) -> None:
        """Adds up waiting records, many together: at half the CPU that each would take during its request."""
        pending, self._pending = self._pending, []
        for record in pending:
            self._add(record)
        for times in self._times.values():
            times.add_up()
        if self._by_key is not None:
            self._by_key.turn()

    def _add(self, record: RequestRecord) -> None:
        usage = record.usage
        key = (*_labels(record), None if usage is None else usage.source)
        series = self._series.get(key)
        if series is None:
            series = self._new(_Key(*key))
        series.count += 1
        if record.trace is None:
            whole, added, first = series.times.recent
            whole.append(record.duration_ms / 1000)
            if record.attempts:
                added.append((record.duration_ms - record.upstream_ms) / 1000)
            if record.time_to_first_token_ms is not None:
                first.append(record.time_to_first_token_ms / 1000)
        else:
            _add_traced(series.times, record, record.trace)
        if usage is not None:
            series.input += usage.input or 0
            series.output += usage.output or 0
        if record.cost is not UNSET:
            series.cost += record.cost
        if record.dropped:
            series.dropped += len(record.dropped)
        if record.asked is not None and record.routed is not None:  # an unknown model's name is the client's own
            way = (record.asked, record.model, record.routed)
            self._routed[way] = self._routed.get(way, 0) + 1
        if record.alias is not UNSET:
            pair = (self.alias(record.alias) or "other", record.model)
            self._aliases[pair] = self._aliases.get(pair, 0) + 1
        if self._genai is not None:
            self._genai.add(record)
        if self._by_key is not None:
            self._by_key.add(record)

    def _new(self, key: _Key) -> _Series:
        """The series of labels that are new. Teams beyond MOST_TEAMS share the series of `other`."""
        team = key.team or "none"
        if team != "none" and team not in self._teams:
            if len(self._teams) < MOST_TEAMS:
                self._teams.add(team)
            else:
                team = "other"
        named = key._replace(team=team)
        index = key if team != "other" else named
        times = self._times.setdefault((key.dialect, key.model), _Times())
        return self._series.setdefault(index, _Series(named, times))

    # -- what is shown ----------------------------------------------------------------------------------------------

    def page(self, accept: bytes = b"") -> bytes:
        """The exposition text, made at once; accept is a scraper's header."""
        return b"".join(exposition.slices(self.registry, accept))

    async def page_in_turns(self, accept: bytes, group: ProcessGroup | None) -> bytes:
        """The same of all processes of a group, made in small steps between which the event loop goes round."""
        source = self.registry if group is None else await group.together(self.registry)
        return await exposition.in_turns(exposition.slices(source, accept))

    def collect(self) -> Iterator[Metric]:
        self._count()
        yield family("dragoman_requests_running", (((dialect,), count) for dialect, count in self._running.items()))
        for name, parts in _COUNTERS.items():
            sums: dict[tuple[str, ...], int] = {}
            for labels, count in chain.from_iterable(map(parts, self._series.values())):
                if count:
                    sums[labels] = sums.get(labels, 0) + count
            yield family(name, sums.items())
        outcomes = dict.fromkeys(product(self._models, _OUTCOMES), 0)
        for series in self._series.values():
            if (pair := (series.key.model, series.key.outcome)) in outcomes:
                outcomes[pair] += series.count
        yield family("dragoman_model_requests_total", outcomes.items())
        for name, pick in _TIMES.items():
            times = ((labels, pick(one)) for labels, one in self._times.items())
            yield exposition.histogram(name, (each for each in times if any(each[1].counts)))
        for name, by_model in (
            ("dragoman_inter_token_latency_seconds", self.gaps),
            ("dragoman_queue_wait_seconds", self.waits),
        ):
            yield exposition.histogram(name, (((model,), one) for model, one in by_model.items()))
        yield exposition.histogram("dragoman_guard_seconds", self.guard_seconds.items())
        yield exposition.histogram("dragoman_loop_lag_seconds", [((), self.loop_lag)])
        yield family("dragoman_routed_total", self._routed.items())
        yield family("dragoman_alias_requests_total", self._aliases.items())
        connections = self.connections.items()
        yield family("dragoman_upstream_connections_opened_total", (((name,), one.opened) for name, one in connections))
        yield family("dragoman_upstream_connections_reused_total", (((name,), one.reused) for name, one in connections))
        if self._genai is not None:
            yield from self._genai.collect()
        if self._by_key is not None:
            yield from self._by_key.collect()


_Parts = Iterable[tuple[tuple[str, ...], int]]
"""(the values of a counter's labels, the amount to add)"""


def _requests(one: _Series) -> _Parts:
    key = one.key
    yield (key.dialect, key.operation, key.model, str(key.status), key.outcome), one.count


def _tokens(one: _Series) -> _Parts:
    yield (one.key.model, "input", one.key.source or ""), one.input
    yield (one.key.model, "output", one.key.source or ""), one.output


def _team_tokens(one: _Series) -> _Parts:
    yield (one.key.team or "", "input"), one.input
    yield (one.key.team or "", "output"), one.output


_COUNTERS: dict[str, Callable[[_Series], _Parts]] = {
    "dragoman_requests_total": _requests,
    "dragoman_tokens_total": _tokens,
    "dragoman_team_requests_total": lambda one: [((one.key.team or "", one.key.outcome), one.count)],
    "dragoman_team_tokens_total": _team_tokens,
    "dragoman_cost_nano_total": lambda one: [((one.key.team or "", one.key.model), one.cost)],
    "dragoman_cancelled_requests_total": lambda one: (
        [((one.key.model, one.key.phase), one.count)] if one.key.phase is not None else ()
    ),
    "dragoman_dropped_fields_total": lambda one: [((one.key.dialect,), one.dropped)],
}
_TIMES: dict[str, Callable[[_Times], Histogram]] = {
    "dragoman_request_duration_seconds": lambda one: one.whole,
    "dragoman_added_seconds": lambda one: one.added,
    "dragoman_time_to_first_token_seconds": lambda one: one.first,
}


def _add_traced(times: _Times, record: RequestRecord, trace: str) -> None:
    at = record.time
    times.whole.add_traced(record.duration_ms / 1000, trace, at)
    if record.attempts:
        times.added.add_traced((record.duration_ms - record.upstream_ms) / 1000, trace, at)
    if record.time_to_first_token_ms is not None:
        times.first.add_traced(record.time_to_first_token_ms / 1000, trace, at)


def _gauge(name: str, registry: CollectorRegistry) -> Gauge:
    figure = FIGURES[name]
    return Gauge(name, figure.text, figure.labels, registry=registry)


def _counter(name: str, registry: CollectorRegistry) -> Counter:
    figure = FIGURES[name]
    return Counter(figure.family, figure.text, figure.labels, registry=registry)
