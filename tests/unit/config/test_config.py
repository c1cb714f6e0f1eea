"""gateway.yaml: what is read, and what its defaults are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config, Listen, Model, load
from gateway.config.model import Deadlines
from gateway.config.secrets import read_secrets, with_secrets
from gateway.config.source import resolve
from tests.unit.config.reading import HASH, SMALL, faults, read


def test_smallest_file_has_all_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL)
    assert config == Config(models={"small": Model(backend="openai", workers=("http://127.0.0.1:8081",))})
    assert config.auth == "open"
    assert config.listen == Listen(host="127.0.0.1", port=8080, keep_alive_s=75, max_body_bytes=32 << 20)
    assert config.dialect("openai").enabled
    assert config.dialect("openai").prefixes is None


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("2", 2.0), ("0.5", 0.5), ("500ms", 0.5), ("30s", 30.0), ("1m", 60.0), ('"45"', 45.0), ("1.5s", 1.5)],
)
def test_durations(tmp_path: Path, written: str, seconds: float) -> None:
    assert read(tmp_path, f"{SMALL}deadlines:\n  connect_s: {written}\n").deadlines.connect_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("written", "size"),
    [("2048", 2048), ("64KiB", 65536), ("1MB", 10**6), ("1 GiB", 1 << 30), ("1.5KiB", 1536), ("2kB", 2000)],
)
def test_sizes(tmp_path: Path, written: str, size: int) -> None:
    assert read(tmp_path, f"{SMALL}listen:\n  max_body_bytes: {written}\n").listen.max_body_bytes == size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None), ("~", None), ("", None), ("true", True), ("FALSE", False), ("no", "no"), ("on", "on"),
        ("12", 12), ("-3", -3), ("0755", 755), ("1:30", "1:30"), ("1_000", "1_000"), (".5", 0.5), ("1e3", 1000.0),
        ("2027-01-31", "2027-01-31"), ("0x1f", "0x1f"), ("9" * 30, 1e30), ("1.2.3", "1.2.3"), ("-", "-"), (".", "."),
    ],
)  # fmt: skip
def test_plain_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    got = resolve(text)
    assert got == value
    assert type(got) is type(value)


def test_quoted_text_stays_text_and_names_may_look_like_numbers(tmp_path: Path) -> None:
    model = "    backend: openai\n    workers: [http://127.0.0.1:8081]\n    upstream_model: '8'\n"
    config = read(tmp_path, f"models:\n  7:\n{model}  on:\n{model}")
    assert sorted(config.models) == ["7", "on"]
    assert config.models["7"].upstream_model == "8"


def test_aliases_of_yaml_are_written_out(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL + "    deadlines: &slow\n      idle_s: 7\ndeadlines: *slow\n")
    assert config.deadlines.idle_s == 7
    said = faults(tmp_path, SMALL + "    deadlines: &slow\n      idle_s: x\ndeadlines: *slow\n")
    assert [line.split(" must")[0] for line in said] == [
        "gateway.yaml:6: deadlines.idle_s:",
        "gateway.yaml:6: models.small.deadlines.idle_s:",
    ]


def test_an_anchor_may_be_given_again(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        f"{SMALL}    deadlines: &a\n      idle_s: 7\nlisten: &b\n  port: 1\nqueue: {{timeout_s: &a 3}}\n"
        "health: {interval_s: *a}\n",
    )
    assert config.health.interval_s == 3


def test_empty_sections_are_defaults(tmp_path: Path) -> None:
    names = [name for name in Config.model_fields if name not in ("models", "keys_file")]
    assert read(tmp_path, SMALL + "".join(f"{name}:\n" for name in names)) == read(tmp_path, SMALL)


def test_worker_addresses_lose_their_last_slash_and_keep_their_base(tmp_path: Path) -> None:
    text = "models:\n  a:\n    backend: vllm\n    workers: ['http://h:1/', 'https://[::1]:2/base/']\n"
    assert read(tmp_path, text).models["a"].workers == ("http://h:1", "https://[::1]:2/base")


def test_deadlines_of_a_model_override_only_what_they_say(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL + "    deadlines: {idle_s: 7}\ndeadlines: {connect_s: 1, idle_s: 9, total_s: 1h}\n")
    assert config.deadlines_for("small") == Deadlines(connect_s=1, idle_s=7, total_s=3600)
    config = read(tmp_path, SMALL + "    deadlines: {total_s: null}\ndeadlines: {total_s: 1h}\n")
    assert config.deadlines_for("small").total_s is None


def test_everything_is_frozen_and_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_LISTEN__PORT", "9000")
    monkeypatch.setenv("LISTEN", '{"port": 9001}')
    config = Config()
    assert config.listen.port == 8080
    with pytest.raises(ValueError, match="frozen"):
        config.listen = Listen()
    with pytest.raises(ValueError, match="frozen"):
        config.listen.port = 1


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.9.9.9", 1), ("::1", 1), ("localhost", 1), ("0.0.0.0", 0), ("::", 0), ("localhost.evil", 0)],
)
def test_loopback(tmp_path: Path, host: str, inside: int) -> None:
    text = f'{SMALL}listen:\n  host: "{host}"\n'
    if inside:
        assert read(tmp_path, text).auth == "open"
    else:
        assert "is open to other machines" in faults(tmp_path, text)[0]
    assert read(tmp_path, text + "auth: open\n").auth == "open"
    assert read(tmp_path, f"{text}keys: {{a: {{hash: {HASH}}}}}\n").auth == "keys"


def test_without_known_names_none_is_checked(tmp_path: Path) -> None:
    text = SMALL.replace("backend: openai", "backend: other") + "dialects:\n  klingon:\n    prefixes: [/k]\n"
    assert len(faults(tmp_path, text)) == 2
    assert load(tmp_path / "gateway.yaml", None, {}).dialect("klingon").prefixes == ("/k",)


def test_prefixes_may_move_and_swap(tmp_path: Path) -> None:
    text = SMALL + "dialects:\n  openai: {prefixes: [/ollama]}\n  ollama_style: {prefixes: [/, /openai]}\n"
    config = read(tmp_path, text)
    assert config.dialect("openai").prefixes == ("/ollama",)
    assert config.dialect("ollama_style").prefixes == ("", "/openai")
    text = SMALL + "dialects:\n  openai: {prefixes: [/ollama]}\n  ollama_style: {enabled: false}\n"
    assert not read(tmp_path, text).dialect("ollama_style").enabled


@pytest.mark.parametrize(
    ("host", "metrics", "apart"),
    [
        ("127.0.0.1", "127.0.0.1:8080 0.0.0.0:8080 [::]:8080 localhost:8080", False),
        ("127.0.0.1", "127.0.0.1:8081 127.0.0.2:8080", True),
        ("0.0.0.0", "127.0.0.1:8080", False),
        ("0.0.0.0", "[::1]:8080", True),
        ("::", "[::1]:8080 0.0.0.0:8080", False),
        ("::1", "[0:0::1]:8080", False),
        ("gate.example", "Gate.example:8080", False),
        ("10.0.0.1", "gate.example:8080", True),
    ],
)
def test_metrics_are_not_where_clients_call(tmp_path: Path, host: str, metrics: str, apart: bool) -> None:
    for listen in metrics.split():
        text = SMALL + f"auth: open\nlisten: {{host: '{host}', port: 8080}}\nmetrics:\n  listen: '{listen}'\n"
        if apart:
            assert read(tmp_path, text).metrics.listen == listen
            continue
        (fault,) = faults(tmp_path, text)
        assert fault.startswith("gateway.yaml:8: metrics.listen: is where clients call")


def test_a_configuration_without_its_secrets_stays_so(tmp_path: Path) -> None:
    config = Config(models={"m": Model(backend="vllm", workers=("http://a",), api_key_env="KEY")})
    secrets, wrong = read_secrets(config, {"KEY": "canary-key"})
    assert (secrets, wrong) == ({("models", "m"): {"api_key": "canary-key"}}, [])
    filled = with_secrets(config, secrets)
    assert (config.models["m"].api_key, filled.models["m"].api_key) == (None, "canary-key")
    assert "canary-key" not in repr(filled)
