"""The state is read from the metrics by their names, and tells every worker's condition."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.samples import Sample

from gateway.cli.terminal import state_of
from gateway.config import Breaker, Model
from gateway.core.failures import Cause
from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.features.console.state import Histogram, State, WorkerState, read_state
from gateway.fleet.worker import Worker
from gateway.observe.metrics import Metrics


def worker(**attributes: Any) -> Worker:
    made = Worker("http://gpu:8000", Breaker(failures=1), 8)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def fleet(name: str, *workers: Worker, aliases: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(name=name, options=Model(backend="vllm", aliases=aliases), workers=workers)


def observed(*models: Any) -> Any:
    fleets = SimpleNamespace(ready=True, models={one.name: one for one in models})
    return SimpleNamespace(
        version="1", draining=False, fleets=fleets, limiter=None, starting=True, unread=["registry"], prompts_logged=[]
    )


def state(metrics: Metrics, *models: Any) -> State:
    return asyncio.run(read_state(metrics.registry.collect(), observed(*models), 1.0))


def finish(metrics: Metrics, **fields: Any) -> None:
    metrics.begun("openai")
    metrics.finished(
        RequestRecord(id="id", dialect="openai", operation="chat", **{"model": "m", "status": 200, **fields})
    )


def test_every_counter_of_a_model_and_a_team() -> None:
    metrics = Metrics()
    finish(metrics, time_to_first_token_ms=40.0, usage=Usage(3, 5), team="blue")
    finish(metrics, time_to_first_token_ms=40.0, usage=Usage(30, 50, source="estimated"))
    finish(metrics, status=500, outcome="failed")
    finish(metrics, model="other", usage=Usage(1000, 1000), team="blue")
    metrics.begun("openai")
    metrics.moved.labels("m", "late").inc()
    metrics.continued.labels("m", "died").inc(2)
    metrics.continued.labels("other", "died").inc()
    found = state(metrics, fleet("m", aliases=("a",)))
    (model,) = found.models
    assert (model.requests, model.input_tokens, model.output_tokens) == ({"ok": 2, "failed": 1}, 33, 55)
    assert model.lost_worker == {"moved": {"late": 1}, "continued": {"died": 2}, "not_continued": {}}
    assert model.first_output is not None
    assert sum(model.first_output.counts) == 2
    place = model.first_output.bounds_s.index(0.05)
    assert model.first_output.counts[place] == 2
    assert [(one.name, one.requests, one.input_tokens, one.output_tokens) for one in found.teams] == [
        ("blue", 2, 1003, 1005),
        ("none", 2, 30, 50),
    ]
    assert found.running == {"openai": 1}
    assert (found.starting, found.unread) == (True, ("registry",))


def test_errors_are_counted_by_status_whatever_the_model() -> None:
    metrics = Metrics()
    for status, outcome in (
        (200, "ok"),
        (429, "refused"),
        (429, "refused"),
        (502, "failed"),
        (200, "failed"),
        (0, "cancelled"),
    ):
        finish(metrics, status=status, outcome=outcome)
    finish(metrics, model="", status=401, outcome="refused")
    assert state(metrics, fleet("m")).errors == {"429": 2, "502": 1, "200": 1, "401": 1}


def test_what_is_asked_of_a_model_reads_its_own_samples() -> None:
    """Else the time would grow with the square of the number of models."""

    class Labels(dict[str, str]):
        read = 0

        def get(self, name: str, default: Any = None) -> Any:
            Labels.read += 1
            return super().get(name, default)

    def looked(models: int) -> int:
        names = [f"m{number}" for number in range(models)]
        family = CounterMetricFamily("dragoman_requests", "", labels=["model", "outcome"])
        for name in names:
            family.samples.append(Sample("dragoman_requests_total", Labels(model=name, outcome="ok"), 1.0))
        Labels.read = 0
        served = [fleet(name) for name in names]
        found = asyncio.run(read_state([family], observed(*served), 1.0))
        assert [one.requests for one in found.models] == [{"ok": 1}] * models
        return Labels.read

    assert looked(40) == 4 * looked(10)


def test_a_model_without_requests_has_zeros() -> None:
    (model,) = state(Metrics(), fleet("m")).models
    assert (model.requests, model.input_tokens, model.first_output, model.waiting) == ({}, 0, None, 0)


@pytest.mark.parametrize(
    ("attributes", "condition"),
    [
        ({"ready": True}, "ready"),
        ({}, "down"),
        ({"ready": True, "draining": True}, "draining"),
        ({"draining": True}, "draining"),
        ({"draining": True, "leaving": True}, "leaving"),
    ],
)
def test_the_condition_of_a_worker(attributes: dict[str, Any], condition: str) -> None:
    (model,) = state(Metrics(), fleet("m", worker(in_flight=2, **attributes))).models
    (found,) = model.workers
    assert (found.condition, found.in_flight, found.max_in_flight) == (condition, 2, 8)


def test_a_worker_has_its_reason_and_its_names() -> None:
    bad = worker()
    bad.trouble, bad.serves = Cause.UNKNOWN_MODEL, ("a", "b")
    well, locked = worker(ready=True), worker(ready=True)
    well.served_as, locked.trouble = "own", Cause.KEY_REFUSED
    (model,) = state(Metrics(), fleet("m", bad, well, locked)).models
    assert [state_of(one) for one in model.workers] == [
        "down: unknown_model (does not serve the model by the name that it was sent (`upstream_model`)) (serves a, b)",
        "ready (serves own)",
        "ready, failed last: key_refused (refuses the gateway's key)",
    ]
    assert [one.reason for one in model.workers] == ["unknown_model", None, "key_refused"]


def test_a_reason_of_another_version_is_shown() -> None:
    assert state_of(WorkerState("a", "down", 0, None, "new_word")) == "down: new_word"


def test_a_worker_that_is_left_out() -> None:
    out = worker(ready=True)
    out.breaker.fail(0.0, 0, may_eject=True)
    (model,) = state(Metrics(), fleet("m", out)).models
    assert model.workers[0].condition == "ejected"
    out.progress.stalled_at = 1.0
    (model,) = state(Metrics(), fleet("m", out)).models
    assert model.workers[0].condition == "stalled"


def test_its_json_can_be_read_again() -> None:
    metrics = Metrics()
    finish(metrics, time_to_first_token_ms=1e9)
    found = state(metrics, fleet("m", worker()))
    assert msgspec.json.decode(msgspec.json.encode(found), type=State) == found
    assert isinstance(found.models[0].first_output, Histogram)
    assert found.models[0].first_output.counts[-1] == 1
