"""What the chart's guards do not know is refused by the gateway's own check: in a Job before an installation or an
upgrade, and by `dragoman check --rendered` beforehand."""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cli import main
from tests.acceptance.helm.chart import SETS, Object, find, objects, parsed, template, text
from tests.support.sampled import sampled

MODEL = {
    "auth": {"existingSecret": "keys"},
    "redis": {"existingSecret": "redis", "valkey": {"persistence": {"enabled": True}}},
    "models": {"m": {"model": "a/b"}},
}
ALONE = {**MODEL, "redis": {"mode": "none"}, "models": {"m": {"model": "a/b", "discovery": "dns"}}}
BUDGET = {"name": "month", "amount": 5, "per": "month", "scope": ["key"]}
PRICED = {"m": {"model": "a/b", "discovery": "dns", "gateway": {"price": {"input": 1, "output": 1}}}}
BAD: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "a budget without a price": (
        MODEL,
        {"config": {"spend": {"currency": "EUR"}, "budgets": [BUDGET]}},
        "gateway.yaml:2: budgets: need a model with a price",
    ),
    "a budget that each of two gateways counts": (
        {**ALONE, "models": PRICED},
        {"replicas": 2, "config": {"spend": {"currency": "EUR"}, "budgets": [BUDGET]}},
        "budgets.0: is counted in memory, by each of 2 gateways for itself: they need a section redis",
    ),
    "a budget that each of an autoscaler's gateways counts": (
        {**ALONE, "models": PRICED},
        {
            "autoscaling": {"enabled": True, "minReplicas": 1, "maxReplicas": 4},
            "config": {"spend": {"currency": "EUR"}, "budgets": [BUDGET]},
        },
        "budgets.0: is counted in memory, by each of 4 gateways",
    ),
    "a budget of a time zone that there is not": (
        {**MODEL, "models": PRICED},
        {"config": {"spend": {"currency": "EUR", "time_zone": "Mars/Olympus"}, "budgets": [BUDGET]}},
        "spend.time_zone: ",
    ),
    "tokens whose keys are nowhere": (
        MODEL,
        {"config": {"jwt": {"issuer": "https://id.example.com", "audience": "a"}}},
        "jwt.jwks_url: or jwks_file is needed",
    ),
    "a guard at no address": (
        MODEL,
        {"config": {"guards": {"g": {"url": "ftp://g"}}}},
        "guards.g.url: must begin with",
    ),
    "an origin without a scheme": (
        MODEL,
        {"config": {"cors": {"origins": ["chat.example.com"]}}},
        "cors.origins.0: must be an origin",
    ),
    "a variable that sets no option": (
        MODEL,
        {"env": [{"name": "DRAGOMAN_LISTEN__PROT", "value": "8080"}]},
        "environment: DRAGOMAN_LISTEN__PROT: ",
    ),
    "a variable with a wrong value": (
        MODEL,
        {"env": [{"name": "DRAGOMAN_LOG__LEVEL", "value": "loud"}]},
        "environment: DRAGOMAN_LOG__LEVEL: must be one of",
    ),
}


def checked(manifests: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of the check of these manifests on standard input."""
    stdin = SimpleNamespace(buffer=io.BytesIO(manifests.encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    return main(["check", "--rendered", "-"])


@pytest.mark.parametrize("name", sampled(SETS, 6))
def test_a_good_value_set_passes_without_its_secrets(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(text(name), monkeypatch) == 0
    assert ": good" in capsys.readouterr().out


@pytest.mark.parametrize("name", BAD)
def test_what_the_gateway_would_refuse_is_refused_before(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values, gateway, message = BAD[name]
    rendered = template({**values, "gateway": gateway})
    for manifests in (rendered, job(parsed(rendered))[1]):
        assert checked(manifests, monkeypatch) == 2
        assert message in capsys.readouterr().err


def job(rendered: list[Object]) -> tuple[Object, str]:
    """The Job before an installation, and the manifests that it checks."""
    (config,) = (one for one in rendered if one["kind"] == "ConfigMap" and one["metadata"]["name"].endswith("-check"))
    return find(rendered, "Job"), config["data"]["manifests.yaml"]


def test_the_job_needs_nothing_that_comes_after_it() -> None:
    """Neither Secrets nor the chart's account: on the first installation there are none."""
    found, _ = job(list(objects("everything")))
    spec = found["spec"]["template"]["spec"]
    assert {volume["name"] for volume in spec["volumes"]} == {"manifests", "tmp"}
    assert "serviceAccountName" not in spec
    assert found["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert [one for one in parsed(template({**MODEL, "check": {"enabled": False}})) if one["kind"] == "Job"] == []


@pytest.mark.parametrize("manifests", ["", "kind: Pod\n", "{", "\x00"])
def test_other_texts_are_named_as_such(
    manifests: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(manifests, monkeypatch) == 2
    assert capsys.readouterr().err.startswith("dragoman: --rendered: ")
