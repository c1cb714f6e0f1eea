"""What `helm install` prints: a curl for each dialect that is enabled, each to a path that the gateway serves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.app import KNOWN
from gateway.app.routes import route_table
from gateway.config import load
from tests.acceptance.helm.chart import CHART, VALUES, find, helm, objects, parsed, template
from tests.acceptance.helm.property import environment
from tests.support.clients import GENERATING


def notes(name: str) -> str:
    """The notes of a value set, without a cluster."""
    values = VALUES / f"{name}.yaml"
    done = helm("install", "dragoman", CHART, "--namespace", "llm", "--dry-run=client", "--values", values)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


@pytest.mark.parametrize(("name", "disabled"), [("minimal", 0), ("embedded", 0), ("gateway-alone", 2)])
def test_there_is_a_curl_for_each_dialect(name: str, disabled: int, tmp_path: Path) -> None:
    said = notes(name)
    addresses = re.findall(r"http://127\.0\.0\.1:8080([^'\s]+)", said)
    assert len(addresses) == len(GENERATING) - disabled
    served = {
        re.sub(r"\{[^}]+\}", "[^/]+", line.path)
        for line in route_table(load(_config(name, tmp_path), KNOWN))
        if line.method == "POST"
    }
    assert [one for one in addresses if not any(re.fullmatch(path, urlsplit(one).path) for path in served)] == []


def _config(name: str, tmp_path: Path) -> str:
    """The gateway's configuration without the Secrets, which say nothing of paths."""
    text = find(objects(name), "ConfigMap", "dragoman")["data"]["gateway.yaml"]
    kept = [line for line in text.splitlines() if "/run/dragoman" not in line]
    file = tmp_path / "gateway.yaml"
    file.write_text("\n".join(kept).replace("auth: keys", "auth: open"))
    return str(file)


def test_keys_are_shown_where_they_are_needed() -> None:
    assert "Authorization: Bearer $KEY" in notes("minimal")
    assert "test.existingSecret" in notes("minimal")
    assert "Authorization" not in notes("embedded")


def test_a_model_that_sleeps_is_told_of() -> None:
    assert "503 with Retry-After" in notes("autoscaled")
    assert "503 with Retry-After" not in notes("minimal")


def test_the_notes_wait_for_the_workers() -> None:
    """Not for the gateways, which are ready without workers (`/readyz`)."""
    waited = re.search(r"wait pod .*--selector (\S+) --timeout (\d+)s", notes("minimal"))
    assert waited is not None
    labels = dict(pair.split("=") for pair in waited[1].split(","))
    (worker,) = [
        one for one in objects("minimal") if one["kind"] == "Deployment" and one["metadata"]["name"] != "dragoman"
    ]
    assert labels.items() <= worker["spec"]["template"]["metadata"]["labels"].items()
    assert int(waited[2]) > worker["spec"]["progressDeadlineSeconds"] - 1
    assert "wait pod" not in notes("gateway-alone")


@pytest.mark.long
def test_the_addresses_of_clients_are_printed() -> None:
    """Those of the Ingress with their scheme; an HTTPRoute does not know its listener's."""
    said = notes("everything")
    assert "  https://llm.example\n" in said
    assert "  https://cloud.example (azure_inference, sagemaker)\n" in said
    assert "\n  openai.example (openai)\n" in said
    assert "\n  http://llm.apps.example\n" in notes("openshift")
    assert "Clients reach it at" not in notes("minimal")
    # Those of a load balancer are known in the cluster alone.
    assert "\n  kubectl -n llm get service dragoman\n" in said
    assert "get service" not in notes("minimal")


CHATS: list[tuple[dict[str, Any], str]] = [
    ({"args": ["--runner", "pooling"]}, "b"),
    ({"args": ["--runner=pooling"]}, "b"),
    ({"args": ["--task", "embed"]}, "b"),
    ({"args": ["--convert=classify"]}, "b"),
    ({"gateway": {"paths": ["/v1/embeddings"]}}, "b"),
    ({"gateway": {"features": ["embeddings"]}}, "b"),
    ({"autoscaling": {"enabled": True, "minReplicas": 0}}, "b"),
    ({"gateway": {"features": ["embeddings", "tools"]}}, "a"),
    ({"gateway": {"paths": ["/v1/chat/completions"]}}, "a"),
    ({"args": ["--runner", "generate"]}, "a"),
]


@pytest.mark.parametrize(("first", "asked"), CHATS)
def test_the_test_asks_a_model_that_chats(first: dict[str, Any], asked: str) -> None:
    assert _asked({"a": {"model": "x/a", **first}, "b": {"model": "x/b"}}) == asked


def test_the_first_model_is_asked_if_none_is_known_to_chat_and_a_name_in_the_values_rules() -> None:
    first = {"model": "x/a", **CHATS[0][0]}
    assert _asked({"a": first}) == "a"
    assert _asked({"a": first, "b": {"model": "x/b"}}, test={"model": "a"}) == "a"


def _asked(models: dict[str, Any], **more: Any) -> Any:
    values = {"auth": {"mode": "open"}, "redis": {"mode": "none"}, "gateway": {"replicas": 1}}
    values["monitoring"] = {"prometheusAddress": "http://prometheus:9090"}
    pod = find(parsed(template({**values, "models": models, **more})), "Pod", "dragoman-completions")
    return environment(pod["spec"]["containers"][0])["MODEL"]
