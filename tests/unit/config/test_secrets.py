"""Files that a configuration refers to."""

from __future__ import annotations

import ssl
from pathlib import Path

import certifi
import pytest

from gateway.config import ConfigError, load
from gateway.config.kinds import redis_server
from tests.unit.config.reading import read


def model(name: str, ca_file: str, more: str = "") -> str:
    return f"  {name}: {{backend: b, workers: [https://w], ca_file: {ca_file}{more}}}\n"


def test_a_bundle_that_several_models_name_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    create = ssl.create_default_context

    def count(cafile: str) -> ssl.SSLContext:
        tried.append(Path(cafile).name)
        return create(cafile=cafile)

    monkeypatch.setattr("gateway.config.secrets.ssl.create_default_context", count)
    (tmp_path / "good.pem").write_bytes(Path(certifi.where()).read_bytes())
    (tmp_path / "bad.pem").write_text("-\n")
    names = ["good.pem", "bad.pem", "absent.pem"]
    text = "".join(model(f"m{number}", names[number % 3]) for number in range(9))
    (tmp_path / "gateway.yaml").write_text("models:\n" + text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "gateway.yaml", environ={})
    assert tried == ["good.pem", "bad.pem"] * 2  # a faulty configuration is read again, for the lines of its faults
    said = [str(fault).split(": ", 1)[1] for fault in caught.value.faults]
    bad, absent = "names a file that holds no PEM certificates", "names a file that cannot be read: No such file"
    assert [line.startswith(f"models.m{at}.ca_file: ") for at, line in zip((1, 2, 4, 5, 7, 8), said, strict=True)]
    assert [bad in line for line in said] == [True, False] * 3
    assert [absent in line for line in said] == [False, True] * 3


def test_a_bundle_for_workers_that_compute_prompts_has_an_effect(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(Path(certifi.where()).read_bytes())
    text = model("m", "ca.pem", ", prefill: {workers: [https://p]}").replace("[https://w]", "[http://w]")
    (tmp_path / "gateway.yaml").write_text("models:\n" + text)
    assert load(tmp_path / "gateway.yaml", environ={}).models["m"].prefill is not None


def test_a_collector_may_have_a_key_in_a_header(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(
        "models:\n" + model("m", "ca.pem").replace(", ca_file: ca.pem", "") + "tracing:\n"
        "  {endpoint: http://c/v1/traces, headers: {authorization: Bearer canary}}\n"
    )
    config = load(tmp_path / "gateway.yaml", environ={})
    assert config.tracing is not None
    assert config.tracing.headers == {"authorization": "Bearer canary"}
    assert "canary" not in repr(config)


INDICATORS = (
    "*{}", "*{}:", "[*{}]", "{{x: *{}}}", "&{0} *{0}", "!{}", "!!{} x", "!<{}", "!a!{} x", "@{}", "%{}", "`{}", "|{}",
    ">{}", "{{{}", "[{}", '"{}', "'{}", "? {}", "- {}", "&{0} &{0}2 x", '"\\x{}"', "*{},x", "a: *{}: b", "{}: *{}",
)  # fmt: skip


@pytest.mark.parametrize("written", INDICATORS)
def test_a_secret_that_yaml_reads_as_something_else_is_not_repeated(written: str, tmp_path: Path) -> None:
    value = written.format("canary", "canary2")
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f"models:\n  m:\n    backend: vllm\n    workers: [http://w:1]\n    api_key: {value}\n")
    assert "canary" not in str(refused.value)


def test_a_password_in_a_url_is_not_shown() -> None:
    server = redis_server("redis://user:canary@host")
    assert server.password == "canary"
    assert "canary" not in repr(server)
