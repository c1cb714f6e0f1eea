"""A worker's own name for the model: taken where it serves one model, and reported where it serves several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from gateway.core.http import Request
from gateway.core.renaming import Renaming
from gateway.wire.openai.replies.facts import facts_of
from tests.support.clients import WAYS, usual
from tests.support.commands import called
from tests.support.harness import Stack
from tests.unit.kernel.test_other_models import ask

DIALECTS = sorted({way.dialect for way in WAYS})


@contextmanager
def named(*names: str, **options: Any) -> Iterator[Stack]:
    """A gateway whose model `m` has no `upstream_model`, and a worker for each of `names`, which serves that alone."""
    models = {"m": {"upstream_model": None, "policy": "round_robin", **options}}
    with Stack(tuple({"models": (name,)} for name in names), {"models": models}) as stack:
        yield stack


@pytest.fixture(scope="module")
def one() -> Iterator[Stack]:
    with named("meta-llama/Llama") as stack:
        yield stack


@pytest.fixture(scope="module")
def mixed() -> Iterator[Stack]:
    with named("m", "first", "second") as stack:
        yield stack


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_one_name_is_sent(one: Stack, dialect: str, stream: bool) -> None:
    way = usual(dialect)
    if not way.answers(stream=stream):
        pytest.skip("not a form of this dialect")
    reply = ask(one, way, "m", stream)
    assert reply.status_code == 200, reply.text
    assert "meta-llama" not in reply.text, "the client sees the name that it sent"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_worker_gets_its_own(mixed: Stack, dialect: str) -> None:
    way = usual(dialect)
    for _ in range(6):
        reply = ask(mixed, way, "m", not way.answers(stream=False))
        assert reply.status_code == 200, reply.text
    assert all(any(entry.method == "POST" for entry in sim.ledger.entries) for sim in mixed.sims)


DEEP = {
    "completions": b'{"model":"m","prompt":"hi","zy":"%b","zz":%b}',
    "embeddings": b'{"model":"m","input":"hi","zy":"%b","zz":%b}',
    "messages": b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}],'
    b'"zy":"%b","tools":[{"name":"f","input_schema":{"type":"object","x":%b}}]}',
}


@pytest.mark.parametrize("path", DEEP)
@pytest.mark.parametrize("heavy", [False, True])
def test_no_body_is_too_deep_to_be_renamed(mixed: Stack, path: str, heavy: bool) -> None:
    """It is read with few calls under way, in a thread if it is heavy, and renamed with more. Both count."""
    filling, statuses = b"x" * (300_000 if heavy else 1), []
    with httpx.Client(base_url=mixed.url, headers={"content-type": "application/json"}) as client:
        for deep in (100, 600, *range(960, 1000)):
            reply = client.post(f"/v1/{path}", content=DEEP[path] % (filling, b"[" * deep + b"]" * deep))
            statuses.append(reply.status_code)
            assert reply.status_code == 200 or "nested too deeply" in reply.text, (deep, reply.text)
    assert statuses == [200, 200, *[400] * 40]


def test_it_is_logged_once_and_shown(one: Stack) -> None:
    (told,) = one.events("worker serves another name")
    assert (told["worker"], told["served"]) == (one.sim.url, "meta-llama/Llama")
    assert one.events("worker down") == []


def test_different_names_in_one_model_are_a_warning(one: Stack, mixed: Stack) -> None:
    """One address may be mistyped: clients of one model get the replies of several."""
    (told,) = mixed.events("workers of one model serve different names")
    served = {name: [sim.url] for name, sim in zip(("m", "first", "second"), mixed.sims, strict=True)}
    assert (told["level"], told["model"], told["served"]) == ("warning", "m", served)
    assert one.events("workers of one model serve different names") == []


@pytest.mark.parametrize(
    ("names", "options"), [(("other", "other"), {}), (("m", "m"), {}), (("m", "other"), {"upstream_model": "m"})]
)
def test_one_name_in_all_of_a_model_is_none(names: tuple[str, ...], options: dict[str, Any]) -> None:
    with named(*names, **options) as stack:
        assert stack.events("workers of one model serve different names") == []


def test_the_record_has_the_name_that_the_worker_serves(one: Stack, mixed: Stack) -> None:
    ask(one, usual("openai"), "m")
    assert one.record()["served"] == "meta-llama/Llama"
    names = dict(zip((sim.url for sim in mixed.sims), (None, "first", "second"), strict=True))
    for _ in range(3):
        ask(mixed, usual("openai"), "m")
        record = mixed.record()
        assert record.get("served") == names[record["worker"]]


def test_the_record_has_the_name_of_the_last_worker() -> None:
    names, options = ("m", "other"), {"policy": "round_robin"}
    for failing in (0, 1):
        simulated = tuple(
            {"models": (name,), "fault": "status:500" if at == failing else ""} for at, name in enumerate(names)
        )
        models = {"m": {"upstream_model": None, **options}}
        with Stack(simulated, {"models": models}) as stack:
            for _ in range(2):
                ask(stack, usual("openai"), "m")
                record = stack.record()
                assert record["worker"] == stack.sims[1 - failing].url
                assert record.get("served") == ("other" if failing == 0 else None)


def test_check_probe_reports_different_names(mixed: Stack, tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    workers = [sim.url for sim in mixed.sims]

    def checked(*flags: str, **options: Any) -> CompletedProcess[str]:
        models = {"m": {"backend": "vllm", "workers": workers, **options}}
        config.write_text(yaml.dump({"models": models, "health": {"interval_s": 10, "timeout_s": 10}}))
        return called("check", "--probe", *flags, str(config))

    found, strict = checked(), checked("--strict")
    assert (found.returncode, strict.returncode) == (0, 1)
    assert f"{workers[1]}: ready; it serves first, and not m: requests are sent there by that name" in found.stderr
    each = f"m ({workers[0]}), first ({workers[1]}), second ({workers[2]})"
    assert f"warning: m: its workers serve different names: {each}" in found.stderr
    assert "good, but for 1 warning" in found.stdout
    assert ": 1 warning" in strict.stderr.splitlines()[-1]
    sent = checked(upstream_model="m")
    assert f"{workers[1]}: ready; it lists first, and not m: requests are sent by the latter" in sent.stderr
    assert "different names" not in sent.stdout + sent.stderr


def test_a_name_that_is_configured_is_sent_whatever_is_listed() -> None:
    with named("other", upstream_model="mine") as stack:
        ask(stack, usual("openai"), "m")
        (entry,) = [entry for entry in stack.sim.ledger.entries if entry.method == "POST"]
        assert json.loads(entry.body)["model"] == "mine"


@pytest.mark.parametrize(
    ("listed", "others"),
    [
        ([{"id": "m"}, {"id": "b"}], ()),
        ([{"id": "a"}], ("a",)),
        ([{"id": "a"}, {"id": "b"}], ("a", "b")),
        ([{"id": "a", "root": "/models/x"}, {"id": "b", "root": "/models/x"}], ("a",)),
        ([{"id": "a"}, {"id": "lora", "parent": "a"}], ("a",)),
        ([{"id": "a", "parent": None}, {"id": "m", "parent": "a"}], ()),
        ([], ()),
        ([{"id": ""}, {"id": "x" * 300}, {"name": "no id"}], ()),
    ],
)
def test_the_names_of_a_list(listed: list[dict[str, Any]], others: tuple[str, ...]) -> None:
    assert facts_of(json.dumps({"data": listed}).encode(), "m").others == others


RENAMING = Renaming(frozenset({"m", "a"}), "a")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"model": "m", "n": 1}, {"model": "a", "n": 1}),
        ({"n": 1, "model": "m"}, {"n": 1, "model": "a"}),
        ({"model": "lora"}, {"model": "lora"}),
        ({"tools": [{"model": "m"}], "model": "m"}, {"tools": [{"model": "m"}], "model": "a"}),
        ({"x": '"model":"m"'}, {"x": '"model":"m"'}),
        ({"model": None}, {"model": None}),
    ],
)
def test_a_name_is_replaced_where_it_is_the_models(body: dict[str, Any], expected: dict[str, Any]) -> None:
    request = Request("POST", "/", [], json.dumps(body).encode())
    before = request.body
    assert json.loads(RENAMING.apply(request).body) == expected
    assert request.body is before


def test_a_body_with_the_right_name_is_not_copied() -> None:
    request = Request("POST", "/", [], msgspec.json.encode({"model": "a", "prompt": "x" * 1000}))
    assert RENAMING.apply(request) is request


def test_an_upload_is_renamed() -> None:
    with named("whisper-x", features=["transcription"]) as stack:
        audio = {"file": ("a.wav", b"RIFF" + b"x" * 200, "audio/wav")}
        httpx.post(stack.url + "/v1/audio/transcriptions", data={"model": "m"}, files=audio)
        (entry,) = [entry for entry in stack.sim.ledger.entries if entry.method == "POST"]
        assert b"whisper-x" in entry.body
