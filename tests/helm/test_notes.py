"""What `helm install` prints: a curl for each dialect that is enabled, each to a path that the gateway serves."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.app import KNOWN
from gateway.app.routes import route_table
from gateway.config import load
from tests.clients import GENERATING
from tests.helm.chart import CHART, VALUES, find, helm, objects


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
