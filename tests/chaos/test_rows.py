"""A quick row runs with every test run, those of a minute by `make test-long`; all of them by `make chaos`."""

from __future__ import annotations

import random

import pytest

from tests.acceptance.helm.chart import objects, pods
from tests.chaos import alike, batched, hung, routes, salts, shipped, spent
from tests.chaos.__main__ import main
from tests.chaos.alike import ALIKE, told_apart, welch
from tests.chaos.arriving import at_once, share
from tests.chaos.limits import Admit, fullest
from tests.chaos.row import Findings, every_row, percentile

QUICK = ("S6",)
LONG = ("G1", "G2", "G3", "G4", "H1", "H2", "H3", "J2", "K2", "S1", "S7", "S8")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
async def test_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "ROUNDS", 3)
    monkeypatch.setattr(routes, "ONE_IN", 17)  # of 20 ways and 9 credentials: another one for each route
    monkeypatch.setattr(salts, "PROMPTS", 3)
    await holds(name, monkeypatch)


@pytest.mark.long
@pytest.mark.whole  # minutes: `make test` tries a part of the ways
async def test_no_way_around_a_key_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    await holds("S1", monkeypatch)


async def holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "STEPS", (batched.in_the_middle,))
    monkeypatch.setattr(spent, "AMOUNT", spent.AMOUNT * 600 // spent.COUNT)
    monkeypatch.setattr(spent, "COUNT", 600)
    for name_, value in {"HUNG_S": 5.0, "WARM_S": 1.5, "IMPATIENT_S": 6.0, "ROLLED": 1}.items():
        monkeypatch.setattr(hung, name_, value)
    findings = Findings()
    await every_row()[name][1](findings)
    # Times are for `make chaos`, on a machine that does nothing else.
    short = [check for check in findings.checks if not check.holds and not check.timed]
    assert not short, "\n".join(map(str, short))


def test_a_row_that_measured_nothing_is_short() -> None:
    findings = Findings()
    assert not findings.holds
    findings.check("nothing", 0, 0, True)
    assert not findings.holds


def test_an_unknown_row_is_refused() -> None:
    assert main(["nothing"]) == 2


def test_a_pod_that_lacks_something_is_named() -> None:
    among = objects("minimal")
    policies = [one["spec"]["podSelector"]["matchLabels"] for one in among if one["kind"] == "NetworkPolicy"]
    (pod,) = [pod for where, pod in pods(among) if where == "Deployment/dragoman"]
    assert all(shipped.fields(pod, policies).values())
    bare = {"metadata": pod["metadata"], "spec": {"containers": [{"name": "gateway"}]}}
    assert not any(shipped.fields(bare, []).values())


def test_kinds_of_which_one_is_slower_are_told_apart_and_equal_ones_are_not() -> None:
    draw = random.Random(1)
    times = [draw.gauss(1000, 50) + (draw.random() < 0.02) * draw.uniform(0, 100_000) for _ in range(20_000)]
    one, other = times[::2], times[1::2]
    assert abs(told_apart(one, other)[0]) < ALIKE
    slower = [value + 5 for value in other]
    assert abs(welch(one, slower)[0]) < ALIKE, "what is rare and long hides it"
    t, error = told_apart(one, slower)
    assert t < -ALIKE
    assert 0.5 < error < 1
    assert welch([1.0, 1.0], [1.0, 1.0]) == (0, 0)
    assert abs(welch([1.0, 1.0], [2.0, 2.0])[0]) > ALIKE


def test_the_checker_sees_what_is_too_much() -> None:
    """It counts those that were certainly decided within one window."""

    def admit(earliest: float, latest: float, tokens: int = 1) -> Admit:
        record = {"time": earliest, "duration_ms": 0, "outcome": "ok"}
        return Admit(record, {"started": latest, "prompt_tokens": tokens, "tokens": 0}, 0.0)

    assert fullest([admit(0, 0.1), admit(0.5, 0.6, 5), admit(0.95, 1.05), admit(1.5, 1.6)], 1.0) == (2, 6)
    assert fullest([], 1.0) == (0, 0)
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3.0
    assert percentile([float(one) for one in range(1, 101)], 0.99) == 99.0


def test_what_workers_were_given_is_counted() -> None:
    def entry(started: float, ended: float) -> dict[str, float]:
        return {"started": started, "ended": ended}

    assert at_once([]) == 0
    assert at_once([entry(0, 2), entry(1, 3), entry(2, 4)]) == 2, "one that ends as another begins is no longer there"
    assert at_once([entry(0, 0), entry(5, 6), entry(7, 8)]) == 2, "the first never ended"
    one, other = [entry(1, 2)], [entry(at, 9) for at in (1, 1.5, 2, 3)]
    assert share([one, other], 0, 1, 3) == 0.5
    assert share([one, other], 0, 4, 5) == 0
