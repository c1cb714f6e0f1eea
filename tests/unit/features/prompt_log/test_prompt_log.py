"""The log of prompts: whose are logged, what is kept of them, and what never is."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core.events import Delta, PartStart
from gateway.core.messages import Chat
from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.core.written import Moment
from gateway.features.prompt_log import drawn
from gateway.features.prompt_log.entry import Answer, Entry, Line, Prompt, ReplyTexts
from gateway.features.prompt_log.traces import attributes_of
from gateway.translation import offline
from gateway.translation.texts import Shown
from tests.support.clients import DIALECTS, Way
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.support.sampled import sampled
from tests.support.standins.guard import guard
from tests.unit.app.asking import GONE, key
from tests.unit.features.admin.calling import Caller, code
from tests.unit.features.admin.calling import config as admins
from tests.unit.features.guards.asking import USUAL, refusing
from tests.unit.features.prompt_log.logged import ALL, config, lines, post, said, written
from tests.unit.kernel.asking import PATH, TOOL, chat, raw_request, scripted

CASES = [
    (way, stream)
    for way in USUAL
    for stream in (False, True)
    if way.operation in ("chat", "complete") and way.answers(stream=stream) and way.example.route != "compact"
]
TEXT = "Ein naïver Gruß an 漢字, wie alles 🎉 danach auch."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prompts")


@pytest.fixture(scope="module")
def stack(folder: Path) -> Iterator[Stack]:
    with Stack(config=config(folder)) as running:
        yield running


def wait_logged(stack: Stack, names: list[str]) -> None:
    """Until the gateway shows to operators that these requests are logged."""
    deployment = stack.gateway.deployment
    until(lambda: deployment.offers.prompts_logged(deployment.prepared.keys.logged) == names)


def ask(stack: Stack, way: Way, text: str, *, stream: bool, **members: Any) -> httpx.Response:
    body = {"model": "m", **way.body(text, stream=stream, max_tokens=500, **members)}
    reply = httpx.post(stack.url + way.path("m"), json=body, timeout=30)
    assert reply.status_code == 200, (way, reply.text)
    return reply


@pytest.mark.parametrize("number", sampled(range(len(CASES)), 3, lambda number: CASES[number][0].dialect))
def test_every_dialect_gives_the_same_entry(stack: Stack, folder: Path, number: int) -> None:
    way, stream = CASES[number]
    text = scripted(text=TEXT)
    ask(stack, way, text, stream=stream)
    line = written(stack, folder)[-1]
    record = stack.record()
    # Ollama's generate is a chat, by the model's template.
    role = "prompt" if way.operation == "complete" and way.dialect != "ollama" else "user"
    assert line["prompt"] == {"texts": [{"role": role, "text": text}], "others": [], "cut": False}
    reply = {"texts": [{"role": "assistant", "text": TEXT}], "finish": ["stop"], "complete": True, "cut": False}
    assert line["reply"] == reply
    same = ("id", "key", "team", "dialect", "operation", "model", "stream", "status", "outcome", "code", "usage")
    assert {name: line[name] for name in same} == {name: record[name] for name in same}
    assert (line["by"], line["masked"]) == ("rule all", 0)


def test_calls_of_tools_reasoning_and_choices_are_logged(stack: Stack, folder: Path) -> None:
    script = scripted(reasoning="hm", text="so", tool_calls=[{"name": "f", "arguments": '{"a": "\\u0046"}'}])
    for stream in (False, True):
        post(stack, script, tools=[TOOL], stream=stream)
        line = written(stack, folder)[-1]
        assert [one.get("kind", "text") for one in line["reply"]["texts"]] == ["thinking", "text", "tool"], stream
        assert line["reply"]["texts"][2]["text"] == '{"a": "F"}'
        assert [one["role"] for one in line["prompt"]["texts"]] == ["user", "tools", "tools"]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    post(stack, messages=[{"role": "user", "content": [{"type": "text", "text": "look"}, image]}])
    line = written(stack, folder)[-1]
    assert line["prompt"] == {"texts": [{"role": "user", "text": "look"}], "others": ["image"], "cut": False}
    assert "aGVsbG8" not in str(line)


def threads() -> int:
    return [one.name for one in threading.enumerate()].count("prompt-log")


def test_off_means_nothing_anywhere(tmp_path: Path) -> None:
    before = threads()
    with Stack() as stack:
        post(stack, "quiet")
        assert stack.service("prompt_log") is None
        assert threads() == before
        stack.records()
        assert b"quiet" not in stack.output.getvalue()
    (one, entry) = key("one")
    with Stack(config={**config(tmp_path / "none", {}), "keys": entry}) as stack:
        post(stack, "quiet", one)
        stack.records()
        assert stack.service("prompt_log").bytes == 0
        assert not (tmp_path / "none").exists()


def test_a_choice_of_one_is_no_choice_of_another(tmp_path: Path) -> None:
    secrets, entries = dict[str, str](), dict[str, Any]()
    for name, team in (("a", None), ("red", "x"), ("blue", "x"), ("b", None)):
        secrets[name], entry = key(name, **({} if team is None else {"team": team}))
        entries |= entry
    model = {"backend": "vllm", "upstream_model": "sim"}
    choices: dict[str, tuple[dict[str, Any], set[str]]] = {
        "key": ({"key": ["a"]}, {"a m", "a n"}),
        "team": ({"team": ["x"]}, {"red m", "red n", "blue m", "blue n"}),
        "model": ({"model": ["alias"]}, {"a m", "red m", "blue m", "b m"}),
        "both": ({"team": ["x"], "key": ["a", "blue"], "model": ["n"]}, {"blue n"}),
    }
    with Stack(config={"keys": entries}) as stack:
        for name, (match, expected) in choices.items():
            folder = tmp_path / name
            sections = {
                **config(folder, {name: {"match": match}}),
                "models": {"n": {**model, "workers": [stack.sim.url]}},
            }
            stack.run(stack.gateway.reload(stack.config(sections)))
            for who, secret in secrets.items():
                for asked in ("m", "n"):
                    post(stack, f"{who} {asked}", secret, model=asked)
            found = written(stack, folder)
            assert {said(line)[0][0] for line in found} == expected
            assert {line["by"] for line in found} == {f"rule {name}"}


@pytest.mark.parametrize("fault", ["reset@3", "fin@3", "eof@3"])
def test_a_reply_that_is_cut_is_marked_with_its_reason(tmp_path: Path, fault: str) -> None:
    with Stack(({"itl_ms": 30},), config=config(tmp_path)) as stack:
        body = chat(scripted(text="a b c d e f g h i j", fault=fault), stream=True)
        with contextlib.suppress(httpx.RemoteProtocolError):
            httpx.post(stack.url + "/v1/chat/completions", json=body, timeout=30)
        (line,) = written(stack, tmp_path)
        assert (line["outcome"], line["code"]) == ("failed", stack.record()["code"])
        assert (line["reply"]["complete"], line["reply"]["finish"]) == (False, [])
        assert "a b c d e f g".startswith(line["reply"]["texts"][0]["text"])


def test_a_request_that_got_no_reply_has_none(stack: Stack, folder: Path) -> None:
    for stream in (False, True):
        post(stack, scripted(text="a b", fault="status:500"), stream=stream)
        line = written(stack, folder)[-1]
        assert (line["reply"], line["outcome"], line["code"]) == (None, "failed", stack.record()["code"])


def test_a_reply_whose_client_left_is_marked(stack: Stack, folder: Path) -> None:
    client = raw_request(stack, chat(scripted(text="a b c d left", fault="stall@2"), stream=True))
    assert b"200 OK" in client.recv(65536)
    client.close()
    until(lambda: stack.record()["outcome"] == "cancelled")
    line = written(stack, folder)[-1]
    assert (line["outcome"], line["reply"]["complete"]) == ("cancelled", False)


def test_a_stream_that_another_worker_went_on_with_is_one_reply(tmp_path: Path) -> None:
    with Stack(({}, {}), config=config(tmp_path)) as stack:
        for tries in range(8):  # until the worker that breaks is asked first
            stack.sim.fault("reset@2", 1)
            post(stack, scripted(text=f"one two three four {tries}"), stream=True)
            line = written(stack, tmp_path)[-1]
            assert (said(line)[1], line["reply"]["complete"]) == ([f"one two three four {tries}"], True)
            if stack.record()["continued"]:
                return
    raise AssertionError("no stream was continued")


def test_a_line_names_the_model_whose_rule_chose_it(tmp_path: Path) -> None:
    rules = {"away": {"match": {"model": ["away"]}}}
    with Stack(config={**config(tmp_path, rules), "models": {"away": {**GONE, "fallback": ["m"]}}}) as stack:
        for stream in (False, True):
            post(stack, "for the one", model="away", stream=stream)
            line = written(stack, tmp_path)[-1]
            assert (said(line), line["model"], line["outcome"]) == ((["for the one"], None), "away", "ok")
        stack.run(stack.gateway.reload(stack.config({"prompt_log": {"rules": ALL}})))
        for stream in (False, True):
            post(stack, scripted(text="both"), model="away", stream=stream)
            line = written(stack, tmp_path)[-1]
            assert (said(line)[1], line["model"]) == (["both"], "m")


def test_limits_refuse_what_is_logged_and_guards_what_is_not(tmp_path: Path) -> None:
    limits = [{"name": "r", "kind": "requests", "limit": 1, "scope": ["key"]}]
    with Stack(config={**config(tmp_path), "limits": limits}) as stack:
        assert [post(stack, text).status_code for text in ("first", "second")] == [200, 429]
        line = written(stack, tmp_path)[-1]
        assert (said(line), line["outcome"], line["status"]) == ((["second"], None), "refused", 429)
    with guard() as service:
        service.decide = refusing("bad")
        for stage in ({"before": True}, {"before": False, "after": "whole"}):
            guards = {"g": {"url": service.url, **stage}}
            for stream in (False, True):
                folder = tmp_path / f"{stage} {stream}"
                with Stack(config={**config(folder), "guards": guards}) as stack:
                    text = "bad" if stage["before"] else scripted(text="so bad")
                    post(stack, text, stream=stream)
                    found = written(stack, folder)
                    assert [said(line) for line in found] == ([] if stage["before"] else [([text], None)])


def test_what_a_guard_replaced_is_logged_as_it_left_it(tmp_path: Path) -> None:
    with guard() as service:
        service.decide = lambda question: {"action": "replace", "texts": ["masked" for _ in question["texts"]]}
        guards = {"g": {"url": service.url, "after": "whole"}}
        with Stack(config={**config(tmp_path), "guards": guards}) as stack:
            for stream in (False, True):
                post(stack, "secret", stream=stream)
                assert said(written(stack, tmp_path)[-1]) == (["masked"], ["masked"])


def test_a_reply_from_the_cache_is_logged(tmp_path: Path) -> None:
    with Stack(config={**config(tmp_path), "reply_cache": {}}) as stack:
        for stream in (False, False, True):
            post(stack, scripted(text="kept"), temperature=0, stream=stream)
        found = written(stack, tmp_path)
        assert [said(line)[1] for line in found] == [["kept"]] * 3
        assert [line["reply"]["complete"] for line in found] == [True] * 3


def test_requests_without_a_text_for_a_reply_have_their_prompt(stack: Stack, folder: Path) -> None:
    body = {"model": "m", "input": ["one", "two"]}
    assert httpx.post(stack.url + "/v1/embeddings", json=body, timeout=30).status_code == 200
    line = written(stack, folder)[-1]
    assert (said(line), line["operation"], line["outcome"]) == ((["one", "two"], None), "embed", "ok")


# -- secrets --------------------------------------------------------------------------------------------------------


def test_no_key_is_ever_written(tmp_path: Path) -> None:
    secret, entry = key("one")
    other, entry_of_other = key("other")
    pasted = ["sk-" + "abcdefghij" * 4, "AKIAABCDEFGHIJKLMNOP"]
    with Stack(config={**config(tmp_path, mask=[]), "keys": entry | entry_of_other}) as stack:
        for stream in (False, True):
            for word in (secret, other, *pasted):
                text = scripted(text=f"a key: {word}, and more")
                post(
                    stack, text, secret, stream=stream, tools=[{**TOOL, "function": {"name": "f", "description": word}}]
                )
        found = written(stack, tmp_path)
        assert len(found) == 8
        assert all("***" in line["reply"]["texts"][0]["text"] and line["masked"] for line in found)
        whole = "".join(file.read_text() for file in tmp_path.iterdir()) + stack.output.getvalue().decode()
        assert not [word for word in (secret, other, *pasted) if word in whole]
        assert "authorization" not in whole.lower()


def test_texts_are_masked_before_they_are_written(tmp_path: Path) -> None:
    texts = "write to jane.doe@example.com, card 4111 1111 1111 1111, staff E-12345."
    with Stack(config=config(tmp_path, patterns={"staff": r"E-[0-9]{5}"})) as stack:
        post(stack, scripted(text=texts), stream=True)
        (line,) = written(stack, tmp_path)
        assert said(line)[1] == ["write to [email], card [card], staff [staff]."]
        assert line["masked"] == 6


# -- bounds ---------------------------------------------------------------------------------------------------------


def test_a_long_prompt_keeps_its_end_and_a_long_reply_its_begin(tmp_path: Path) -> None:
    with Stack(({"max_model_len": 100_000},), config=config(tmp_path, max_entry_bytes=1024)) as stack:
        turns = [{"role": "system", "content": f"{at} " + "word " * 60} for at in range(9)]
        for stream in (False, True):
            last = {"role": "user", "content": scripted(text="so " + "漢字 " * 1000)}
            post(stack, messages=[*turns, last], stream=stream, max_tokens=5000)
            line = written(stack, tmp_path)[-1]
            prompt, reply = said(line)
            assert line["prompt"]["cut"]
            assert line["reply"]["cut"]
            assert line["reply"]["complete"]
            assert last["content"].endswith(prompt[-1][-100:])
            assert reply is not None
            assert reply[0].startswith("so 漢字")
            assert all(len("".join(texts).encode()) <= 1024 for texts in (prompt, reply))


LONG = "n-" * 1_000_000 + "sk-" + "a1b2" * 8
NAMED: dict[str, dict[str, Any]] = {
    "speaker": {"messages": [{"role": "user", "content": "hi", "name": LONG}]},
    "member": {LONG: 1},
    "members": {f"{number}{LONG[:60_000]}": 1 for number in range(32)},
    "inner member": {"messages": [{"role": "user", "content": "hi", LONG: 1}]},
    "part": {"messages": [{"role": "user", "content": [{"type": LONG}, {"type": "text", "text": "hi"}]}]},
    "call": {
        "messages": [
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": LONG, "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "hi"},
        ]
    },
    "controls": {"messages": [{"role": "user", "content": "\x01" * 100_000 + "hi"}]},
    "many names": {"messages": [{"role": "user", "content": "hi", "name": LONG[:900]}] * 500},
}


@pytest.mark.parametrize("name", NAMED)
def test_what_is_held_of_a_prompt_is_counted(name: str) -> None:
    most, dialect = 16384, DIALECTS["openai"]
    entry = Entry("key", dialect, most)
    _, op = offline.read(dialect, json.dumps({**chat(), **NAMED[name]}).encode(), route="chat")
    assert isinstance(op, Chat)
    entry.ask(op, "m")
    entry.end(RequestRecord(id="i", dialect="openai"), [])
    prompt = entry.line().prompt
    names = [*[one.name or "" for one in prompt.texts], *prompt.others]
    assert sum(map(len, names)) + sum(len(one.text) for one in prompt.texts) <= entry.size <= most
    assert prompt.texts[-1].text.endswith("hi") or not NAMED[name].get("messages")


@pytest.mark.parametrize("name", NAMED)
def test_no_line_is_long_whatever_clients_name(name: str, tmp_path: Path) -> None:
    most = 16384
    options: dict[str, Any] = {"max_entry_bytes": most, "max_bytes": "1MiB", "max_waiting_bytes": 4 * most}
    with Stack(({"max_model_len": 10_000_000},), config=config(tmp_path, **options)) as stack:
        for _ in range(3):
            reply = httpx.post(stack.url + PATH, json={**chat(max_tokens=5), **NAMED[name]}, timeout=60)
            assert reply.status_code == 200, reply.text[:200]
        found = written(stack, tmp_path)
        assert len(found) == 3
        assert found[0]["prompt"]["texts"][-1]["text"].endswith("hi")
        text = "".join(file.read_text() for file in tmp_path.iterdir())
        assert "a1b2" not in text
        assert max(map(len, text.splitlines())) < 7 * most


def test_what_does_not_fit_into_memory_is_dropped_and_counted(tmp_path: Path) -> None:
    sections = config(tmp_path, max_entry_bytes=16384, max_waiting_bytes=65536)
    with Stack(({"fault": "stall@before"},), config=sections) as stack:
        clients = [raw_request(stack, chat(f"no {at}")) for at in range(3)]
        until(lambda: len(stack.sim.entries) == 3)
        assert stack.service("prompt_log").bytes <= 65536
        stack.loop.call_soon_threadsafe(stack.sim.go_on)
        for client in clients:
            assert b"200 OK" in client.recv(65536)
            client.close()
        assert len(written(stack, tmp_path)) == 1
        assert len(stack.events("prompt not logged")) == 2
        page = httpx.get(stack.url + "/metrics").text
        assert 'dragoman_logged_prompts_total{result="dropped"} 2.0' in page
        assert 'dragoman_logged_prompts_total{result="written"} 1.0' in page


def test_a_folder_that_cannot_be_written_to_harms_no_request(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Stack(config=config(tmp_path / "file")) as stack:
        assert [post(stack).status_code for _ in range(2)] == [200, 200]
        stack.records()
        until(lambda: stack.service("prompt_log").bytes == 0)
        (event,) = stack.events("prompt log failing")
        assert event["to"] == "directory"
        (tmp_path / "file").unlink()
        post(stack, "again")
        assert [said(line)[0] for line in written(stack, tmp_path / "file")] == [["again"]]
        assert stack.events("prompt log writing")


def test_a_tool_with_a_long_name_takes_no_more_room_than_any_text() -> None:
    texts = ReplyTexts(4096)
    for index in range(100):
        texts.take(PartStart(0, index, "tool", "c" * 10_000, "t" * 10_000))
        texts.take(Delta(0, index, "{}"))
    assert texts.left >= 0
    assert texts.cut
    assert sum(len(one.name or "") + len(one.text) for one in texts.texts()) <= 4096


def test_a_share_is_drawn_by_the_id(tmp_path: Path) -> None:
    rules = {"some": {"match": {"model": ["m"]}, "sample": 0.3}}
    ids = [f"id-{number}" for number in range(60)]
    expected = [id for id in ids if drawn(id, 0.3)]
    assert 5 < len(expected) < 40
    for folder in (tmp_path / "one", tmp_path / "other"):
        with Stack(config=config(folder, rules)) as stack:
            for id in ids:
                post(stack, id=id)
            assert [line["id"] for line in written(stack, folder)] == expected


# -- while it runs --------------------------------------------------------------------------------------------------


def test_a_reload_switches_it_on_and_off(tmp_path: Path) -> None:
    before = threads()
    with Stack(config={"metrics": {"listen": "127.0.0.1:1"}}) as stack:

        def shown() -> list[str]:
            found: list[str] = httpx.get(stack.admin_url + "/status.json").json()["prompts_logged"]
            return found

        post(stack, "before")
        assert shown() == []
        stack.run(stack.gateway.reload(stack.config(config(tmp_path))))
        assert stack.events("prompts are logged")[-1]["rules"] == ["rule all"]
        post(stack, "on")
        assert [said(line)[0] for line in written(stack, tmp_path)] == [["on"]]
        until(lambda: shown() == ["rule all"])
        stack.run(stack.gateway.reload(stack.config()))
        post(stack, "after")
        stack.records()
        assert len(lines(tmp_path)) == 1
        until(lambda: shown() == [])
        until(lambda: threads() == before)


def test_an_admin_has_one_key_logged_for_a_time(tmp_path: Path) -> None:
    def moment(seconds: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))

    with (
        Server(tmp_path) as server,
        Stack(config=admins(server, **config(tmp_path / "one", {}))) as one,
        Stack(config=admins(server, **config(tmp_path / "other", {}))) as other,
        Stack(config=admins(server)) as without,
    ):
        root, lead = Caller(one, "root-key"), Caller(one, "lead-key")
        secret, unlogged = root.made("bob", team="blue"), root.made("eve", team="blue")
        assert code(lead("PATCH", "/keys/bob", {"log_prompts_until": moment(3600)})) == (403, "role")
        answer = Caller(without, "root-key")("PATCH", "/keys/bob", {"log_prompts_until": moment(3600)})
        assert code(answer) == (422, "invalid")
        assert "log_prompts_until" in answer.text
        assert root("PATCH", "/keys/bob", {"log_prompts_until": moment(3600)}).status_code == 200
        change = root("GET", "/audit").json()["changes"][0]
        assert (change["by"], change["what"], change["name"]) == ("root", "update", "bob")
        assert change["options"] == ["log_prompts_until"]
        for until in (None, moment(1), moment(7200)):
            assert code(lead("PATCH", "/keys/bob", {"log_prompts_until": until})) == (403, "role")
        assert lead("PATCH", "/keys/bob", {"expires": moment(7200)}).status_code == 200
        for stack, folder in ((one, tmp_path / "one"), (other, tmp_path / "other")):
            wait_logged(stack, ["key bob"])
            for text, who in (("of bob", secret), ("of eve", unlogged)):
                assert post(stack, text, who).status_code == 200
            assert [(said(line)[0], line["by"]) for line in written(stack, folder)] == [(["of bob"], "key")]
        assert root("PATCH", "/keys/bob", {"log_prompts_until": moment(-5)}).status_code == 200
        post(one, "too late", secret)
        assert len(written(one, tmp_path / "one")) == 1
        wait_logged(one, [])


@pytest.mark.parametrize(("finish", "said"), [(["tool_calls"], "tool_call"), ([], "error"), (["length"], "length")])
def test_a_span_has_what_readers_of_messages_need(finish: list[str], said: str) -> None:
    """One message without a finish_reason, or arguments that are no JSON, must not cost the others."""
    texts = [Shown("assistant", '{"a": [1]}', "tool", "f"), Shown("assistant", '{"a": ', "tool", "f")]
    line = Line(
        time=Moment(1.0), id="a", by="key", key="k", dialect="openai", operation="chat", model="m", stream=False,
        status=200, outcome="ok", duration_ms=1.0, usage=Usage(7, 2, cached=3), prompt=Prompt([], []),
        reply=Answer(texts, finish),
    )  # fmt: skip
    found = attributes_of(line)
    usage = {name: value for name, value in found.items() if "usage" in name}
    assert usage == {
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 3,
    }
    (message,) = json.loads(found["gen_ai.output.messages"])
    assert [part["arguments"] for part in message["parts"]] == [{"a": [1]}, '{"a": ']
    assert message["finish_reason"] == said
