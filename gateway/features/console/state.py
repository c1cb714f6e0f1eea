"""The gateway's state as one value: what `/status.json` and the console show. docs/console.md documents its JSON.

Counters only grow: a reader takes two states, and the differences between them are what happened in the meantime. All
counters are those of `/metrics`, read by their names there, so the two never differ. No prompt, key or other secret is
in it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
from msgspec import Struct
from prometheus_client.metrics_core import Metric

from gateway.auth import Admin
from gateway.background import in_turns
from gateway.core.failures import Cause
from gateway.features import Watched
from gateway.fleet.model_fleet import ModelFleet
from gateway.fleet.worker import Worker
from gateway.ratelimit import SubjectLimiter

_TURN = 20
"""Workers or models that are read before the event loop has its turn."""
# The Pod's name on Kubernetes, a container's id elsewhere.
_HOST = socket.gethostname()


class WorkerState(Struct, frozen=True):
    """One worker of a model. condition: ready | down | stalled | ejected | leaving | draining. max_in_flight is None
    without a limit.

    reason     why it is not ready, or failed last: a value of `core.failures.Cause`; else None
    served_as  the name of the model that it is sent, if it serves another one than it was taken to
    serves     the names that it serves, if the model's is none of them
    meaning    what `reason` says of it, for operators; it continues "the worker"
    certificate_for  the hosts of its certificate, if its own is none of them
    proxy      the URL of the proxy to it, its user and password masked
    """

    address: str
    condition: str
    in_flight: int
    max_in_flight: int | None
    reason: str | None = None
    served_as: str | None = None
    serves: tuple[str, ...] = ()
    meaning: str | None = None
    certificate_for: tuple[str, ...] = ()
    proxy: str | None = None


class Histogram(Struct, frozen=True):
    """bounds_s are the upper bounds of the buckets but the last, which has none; counts has one number a bucket."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]


class ModelState(Struct, frozen=True):
    """One model: its workers now, and its requests since the gateway started.

    waiting       requests that wait for a worker now
    requests      finished ones by outcome: ok, refused, failed, cancelled
    first_output  time to first token of streams; None before the first stream
    lost_worker   what became of requests that left or lost their worker: moved, continued, not_continued -> by reason
    """

    name: str
    aliases: tuple[str, ...]
    backend: str
    waiting: int
    workers: tuple[WorkerState, ...]
    requests: dict[str, int]
    input_tokens: int
    output_tokens: int
    first_output: Histogram | None
    lost_worker: dict[str, dict[str, int]] = {}


class TeamState(Struct, frozen=True):
    """Usage of one team's keys since the gateway started; `none` are keys without a team."""

    name: str
    requests: int
    input_tokens: int
    output_tokens: int


class LimitsState(Struct, frozen=True):
    """mode: "strict" while the limits' store decides, "degraded" while this gateway decides alone."""

    mode: str
    replicas: int
    in_flight: int
    refused: dict[str, int]
    shadowed: dict[str, int]


class State(Struct, frozen=True):
    """version is the gateway's, time in Unix seconds, running the requests under way by dialect.

    host    the machine's name: on Kubernetes the Pod's
    errors  requests that were refused or failed, by the HTTP status that their clients saw
    starting  it is not ready yet (`/readyz`): it waits for sources that it has not read
    unread  the sources that it has not read since it started, and of which it knows nothing from before
    prompts_logged  the requests whose prompts and replies are logged, for people
    """

    version: str
    time: float
    uptime_s: float
    ready: bool
    draining: bool
    running: dict[str, int]
    models: tuple[ModelState, ...]
    teams: tuple[TeamState, ...]
    limits: LimitsState | None
    host: str = ""
    errors: dict[str, int] = {}
    starting: bool = False
    unread: tuple[str, ...] = ()
    prompts_logged: tuple[str, ...] = ()


class _Counters:
    """The samples of `/metrics`, to be summed by labels.

    They are kept apart by model, so that what is asked of each model does not read the samples of all others.
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str | None], list[tuple[Mapping[str, str], float]]] = {}

    def add(self, family: Metric) -> None:
        for sample in family.samples:
            for key in {(sample.name, None), (sample.name, sample.labels.get("model"))}:
                self._samples.setdefault(key, []).append((sample.labels, sample.value))

    def by(self, name: str, label: str, model: str | None = None, **only: str | tuple[str, ...]) -> dict[str, int]:
        """Sums of the samples called `name` with the labels `only`, by the value of `label`. With `model`, of its
        samples only. Several values of a label: any of them."""
        sums: dict[str, int] = {}
        for labels, value in self._samples.get((name, model), ()):
            if all(
                labels.get(one) == wanted if isinstance(wanted, str) else labels.get(one) in wanted
                for one, wanted in only.items()
            ):
                sums[labels[label]] = sums.get(labels[label], 0) + int(value)
        return sums

    def histogram(self, name: str, model: str) -> Histogram | None:
        """That of all samples of `model` together; None where there are none."""
        upto = {float(bound): count for bound, count in self.by(f"{name}_bucket", "le", model).items()}
        if not upto:
            return None
        bounds = sorted(upto)
        counts = tuple(after - before for before, after in pairwise([0, *(upto[bound] for bound in bounds)]))
        return Histogram(tuple(bounds[:-1]), counts)


async def read_state(families: Iterable[Metric], gateway: Watched, uptime_s: float) -> State:
    """The state of `gateway`, with the counters in `families`, which are those of `/metrics`. The event loop has its
    turns, however many workers there are."""
    counters = _Counters()
    async for family in in_turns(families, 1):
        counters.add(family)
    models = [await _model(one, counters) async for one in in_turns([*gateway.fleets.models.values()], _TURN)]
    inputs = counters.by("dragoman_team_tokens_total", "team", direction="input")
    outputs = counters.by("dragoman_team_tokens_total", "team", direction="output")
    return State(
        version=gateway.version,
        time=time.time(),
        uptime_s=uptime_s,
        ready=gateway.fleets.ready,
        draining=gateway.draining,
        running=counters.by("dragoman_requests_running", "dialect"),
        models=tuple(models),
        teams=tuple(
            TeamState(name, count, inputs.get(name, 0), outputs.get(name, 0))
            for name, count in sorted(counters.by("dragoman_team_requests_total", "team").items())
        ),
        limits=None if gateway.limiter is None else _limits(gateway.limiter),
        host=_HOST,
        errors=counters.by("dragoman_requests_total", "status", outcome=("refused", "failed")),
        starting=gateway.starting,
        unread=tuple(gateway.unread),
        prompts_logged=tuple(gateway.prompts_logged),
    )


def _limits(limiter: SubjectLimiter) -> LimitsState:
    refused, shadowed = limiter.decisions.of("refused"), limiter.decisions.of("shadowed")
    return LimitsState(limiter.state, limiter.store.replicas, limiter.in_flight, dict(refused), dict(shadowed))


def _worker(worker: Worker) -> WorkerState:
    return WorkerState(
        worker.address,
        _condition(worker),
        worker.in_flight,
        worker.max_in_flight,
        worker.reason,
        worker.served_as,
        tuple(worker.serves),
        worker.meaning,
        tuple(worker.named) if worker.trouble is Cause.HOST_NOT_IN_CERTIFICATE else (),
        worker.proxy,
    )


async def _model(model: ModelFleet, counters: _Counters) -> ModelState:
    tokens = counters.by("dragoman_tokens_total", "direction", model=model.name)
    return ModelState(
        name=model.name,
        aliases=model.options.aliases,
        backend=model.options.backend,
        waiting=counters.by("dragoman_queue_length", "model", model.name).get(model.name, 0),
        workers=tuple([_worker(one) async for one in in_turns([*model.workers], _TURN)]),
        requests=counters.by("dragoman_requests_total", "outcome", model=model.name),
        input_tokens=tokens.get("input", 0),
        output_tokens=tokens.get("output", 0),
        first_output=counters.histogram("dragoman_time_to_first_token_seconds", model.name),
        lost_worker={
            what: counters.by(f"dragoman_{what}_total", "reason", model=model.name)
            for what in ("moved", "continued", "not_continued")
        },
    )


def narrowed(state: State, admin: Admin) -> State:
    """The state as this caller may see it: with its own teams, and without names of keys whose prompts are logged."""
    teams = tuple(team for team in state.teams if admin.may(team.name))
    return msgspec.structs.replace(state, teams=teams, prompts_logged=())


WORST = ("down", "stalled", "ejected", "leaving", "draining", "ready")
"""Conditions of workers, the worst first."""


def of_all(whole: State, states: Sequence[State]) -> State:
    """The state of several processes that share an address.

    whole   made of the metrics of all of them together
    states  the state of each by itself

    A worker has the worst of the conditions that the processes see it in, and of its slots their sum.
    """
    limits = [state.limits for state in states if state.limits is not None]
    workers: dict[str, list[Sequence[WorkerState]]] = {}
    for one in (model for state in states for model in state.models):
        workers.setdefault(one.name, []).append(one.workers)
    return msgspec.structs.replace(
        whole,
        ready=all(state.ready for state in states),
        draining=any(state.draining for state in states),
        uptime_s=max(state.uptime_s for state in states),
        starting=any(state.starting for state in states),
        unread=tuple(dict.fromkeys(source for state in states for source in state.unread)),
        models=tuple(
            msgspec.structs.replace(model, workers=_workers_of_all(workers.get(model.name, ())))
            for model in whole.models
        ),
        limits=None
        if not limits
        else LimitsState(
            mode="strict" if all(one.mode == "strict" for one in limits) else "degraded",
            replicas=max(one.replicas for one in limits),
            in_flight=sum(one.in_flight for one in limits),
            refused=_sums([one.refused for one in limits]),
            shadowed=_sums([one.shadowed for one in limits]),
        ),
    )


def _workers_of_all(processes: Sequence[Sequence[WorkerState]]) -> tuple[WorkerState, ...]:
    found: dict[str, WorkerState] = {}
    for one in (worker for workers in processes for worker in workers):
        known = found.get(one.address)
        if known is None:
            found[one.address] = one
            continue
        most = None
        if known.max_in_flight is not None and one.max_in_flight is not None:
            most = known.max_in_flight + one.max_in_flight
        worse = min(known, one, key=lambda each: (WORST.index(each.condition), each.reason is None))
        found[one.address] = msgspec.structs.replace(
            worse, in_flight=known.in_flight + one.in_flight, max_in_flight=most
        )
    return tuple(found.values())


def _sums(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for one in counts for name in one)
    return {name: sum(one.get(name, 0) for one in counts) for name in names}


def _condition(worker: Worker) -> str:
    states = {
        "leaving": worker.leaving,
        "draining": worker.draining,
        "down": not worker.ready,
        "stalled": worker.progress.stalled,
        "ejected": worker.breaker.ejected,
    }
    return next((name for name, holds in states.items() if holds), "ready")
