"""The cache of replies: who is served from it, in which form, and what is never kept."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from msgspec import Raw

from gateway.core.events import Start
from gateway.core.lifecycle import Reply, ReplyChoice, ReplyPart, fold
from gateway.core.usage import Usage
from gateway.features.reply_cache import entries as waits
from gateway.features.reply_cache.entries import Entries
from gateway.features.reply_cache.events import events_of
from gateway.features.reply_cache.recording import decode_reply
from gateway.wire.json import encode
from gateway.wire.openai.requests.fields import FIELDS
from tests.support.clients import WAYS, Way, usual
from tests.support.harness import Stack, until
from tests.support.sampled import sampled
from tests.support.standins.guard import ALLOW, guard
from tests.unit.app.asking import GONE, key
from tests.unit.features.guards.asking import AFTERS, REFUSED
from tests.unit.features.resume.broken import heard
from tests.unit.kernel.asking import PATH, chat, raw_request, scripted

USUAL = list({(way.dialect, way.operation, *way.example.streams): way for way in WAYS}.values())
CASES = [
    (way, stream)
    for way in USUAL
    for stream in (False, True)
    if way.operation in ("chat", "complete", "embed") and way.answers(stream=stream) and way.example.route != "compact"
]
CHATS = [(way, stream) for way, stream in CASES if way.operation == "chat"]
TEXT = "Ein naïver Gruß an 漢字, wie alles 🎉 danach auch."
PRICE = {"input": 1, "output": 2, "request": 3}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(config={"reply_cache": {}, "models": {"m": {"price": PRICE}}, "spend": {"currency": "EUR"}}) as running:
        yield running


def named(case: tuple[Way, bool]) -> str:
    return f"{case[0]} {'stream' if case[1] else 'whole'}"


def ask(stack: Stack, case: tuple[Way, bool], text: str, **members: Any) -> httpx.Response:
    way, stream = case
    body = {"model": "m", **way.body(text, stream=stream, temperature=0, max_tokens=500, **members)}
    reply = httpx.post(stack.url + way.path("m"), json=body, timeout=30)
    assert reply.status_code == 200, (named(case), reply.text)
    return reply


def post(stack: Stack, text: str = "hi", secret: str | None = None, **members: Any) -> httpx.Response:
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    headers |= members.pop("headers", {})
    return httpx.post(stack.url + PATH, json=chat(text, **{"temperature": 0, **members}), headers=headers, timeout=30)


def result(reply: httpx.Response) -> str | None:
    found: str | None = reply.headers.get("x-dragoman-cache")
    return found


def family(case: tuple[Way, bool]) -> str:
    """The dialects of a family read the same words as the same request: two promise sampling values of their own."""
    return case[0].dialect if case[0].dialect in ("azure_inference", "friendli") else ""


def worked(stack: Stack) -> int:
    """The requests that workers got."""
    return sum(len(sim.entries) for sim in stack.sims)


@pytest.mark.parametrize("number", sampled(range(len(CHATS)), 3))
def test_every_dialect_hits_what_any_other_one_stored(stack: Stack, number: int) -> None:
    first = CHATS[number]
    text = scripted(text=f"{named(first)}: {TEXT}")
    before = worked(stack)
    assert result(ask(stack, first, text)) == "miss"
    for other in [one for one in CHATS if family(one) == family(first)]:
        reply = ask(stack, other, text)
        assert result(reply) == "hit", named(other)
        record = stack.record()
        assert (record["cache"], record["attempts"], record["worker"], record["outcome"]) == ("hit", 0, None, "ok")
    assert worked(stack) == before + 1


@pytest.mark.parametrize("number", sampled(range(len(CASES)), 2, lambda number: CASES[number][0].dialect))
def test_a_reply_reads_as_that_of_a_worker(stack: Stack, number: int) -> None:
    way, stream = case = CASES[number]
    text = scripted(text=f"{named(case)} again: {TEXT}")
    missed, hit = ask(stack, case, text), ask(stack, case, text)
    assert [result(missed), result(hit)] == ["miss", "hit"]
    assert missed.headers["content-type"] == hit.headers["content-type"]
    if stream:
        said = heard(way, missed.content)
        assert said
        assert [one.choices for one in heard(way, hit.content)] == [one.choices for one in said]
    else:
        assert unlike(missed.json(), hit.json()) <= NEW


NEW = {"id", "created", "created_at", "completed_at", "responseId", "createTime", "total_duration", "eval_duration"}
NEW |= {"load_duration", "prompt_eval_duration", "seed"}


def unlike(one: Any, other: Any, name: str = "") -> set[str]:
    """The names of the members that are not the same in both."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return set().union(*[unlike(one[name], other[name], name) for name in one])
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return set().union(*[unlike(*pair, name) for pair in zip(one, other, strict=True)])
    return set() if one == other else {name}


def test_what_decides_the_reply_decides_the_hit(stack: Stack) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked: list[dict[str, Any]] = [
        {}, {"max_tokens": 5}, {"stop": ["x"]}, {"top_p": 0.5}, {"tools": [tool]}, {"logprobs": True},
        {"response_format": {"type": "json_object"}}, {"odd": 1}, {"odd": 2}, {"frequency_penalty": 0.5},
    ]  # fmt: skip
    assert [result(post(stack, "one", **members)) for members in asked] == ["miss"] * len(asked)
    assert [result(post(stack, "one", **members)) for members in asked] == ["hit"] * len(asked)
    same: list[dict[str, Any]] = [{"stream": True, "stream_options": {"include_usage": True}}, {"user": "u"}]
    assert [result(post(stack, "one", **members)) for members in [*same, {"seed": 3}]] == ["hit"] * 3
    said = {"role": "assistant", "content": "no"}
    refused = {"role": "assistant", "refusal": "no"}
    for message in (said, refused):
        turns = [{"role": "user", "content": "q"}, message, {"role": "user", "content": "again"}]
        assert result(post(stack, messages=turns)) == "miss"


ABOUT_THE_CALLER = {"user", "seed", "metadata", "store", "safety_identifier"}
ABOUT_THE_CALLER |= {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}


@pytest.mark.parametrize("backend", ["vllm", "openai"])
@pytest.mark.parametrize("operation", ["chat", "complete"])
def test_every_member_that_a_worker_gets_decides_the_hit(backend: str, operation: str) -> None:
    """Whatever a client of OpenAI's API may send: what it changes of the worker's request makes another request."""
    way = next(way for way in WAYS if (way.dialect, way.operation) == ("openai", operation))

    with Stack(config={"reply_cache": {}, "models": {"m": {"backend": backend}}}) as running:

        def sent(control: str, members: dict[str, Any]) -> tuple[httpx.Response, dict[str, Any]]:
            body = {"model": "m", **way.body("one"), "temperature": 0, "max_tokens": 5, **members}
            reply = httpx.post(running.url + way.path("m"), json=body, headers={"cache-control": control}, timeout=30)
            found: dict[str, Any] = json.loads(running.sims[0].entries[-1].body)
            return reply, found

        plain = sent("", {})[1]
        given = 0
        for field in FIELDS[operation]:
            if field.name in ("model", "messages", "prompt", "temperature", "stream", "stream_options"):
                continue
            members = {**field.beside, field.name: field.sample}
            asked, body = sent("no-store", members)
            assert asked.status_code in (200, 400), (field.name, asked.text)
            if asked.status_code == 400 or body == plain:
                continue
            unlike = {name for name in body.keys() | plain.keys() if body.get(name) != plain.get(name)}
            same = unlike <= ABOUT_THE_CALLER
            assert result(sent("", members)[0]) == ("hit" if same else "miss"), field.name
            assert result(sent("", members)[0]) == "hit", field.name
            given += 1
        assert given > 8


def test_what_a_policy_renames_for_one_key_is_no_reply_for_another_one() -> None:
    secrets, entries = dict[str, str](), dict[str, Any]()
    for name in ("a", "b", "c"):
        secrets[name], entry = key(name, team="x")
        entries |= entry
    policies = {name: {"match": {"key": [name]}, "rename": {"odd": f"odd_{name[0]}"}} for name in ("a", "b")}
    policies["c"] = {"match": {"key": ["c"]}, "rename": {"odd": "odd_a"}}
    with Stack(config={"reply_cache": {}, "keys": entries, "request_policies": policies}) as stack:
        got = [result(post(stack, secret=secret, odd=1)) for secret in secrets.values()]
        assert got == ["miss", "miss", "hit"]


def test_only_requests_that_have_one_answer_are_served(stack: Stack) -> None:
    for members in ({"temperature": 0.1}, {"temperature": None}):
        for _ in range(2):
            assert result(post(stack, "warm", **members)) is None
            assert "cache" not in stack.record()


def test_several_choices_are_kept_if_all_came(stack: Stack) -> None:
    body = {"model": "m", "prompt": ["one", "two"], "temperature": 0, "max_tokens": 9}
    got = [httpx.post(stack.url + "/v1/completions", json={**body, "stream": stream}) for stream in (True, False, True)]
    assert [result(one) for one in got] == ["miss", "hit", "hit"]
    assert len(got[1].json()["choices"]) == 2


def test_a_stream_that_was_stored_whole_begins_with_the_tokens_of_its_prompt(stack: Stack) -> None:
    whole, stream = (next(one for one in CHATS if one == (usual("anthropic"), streamed)) for streamed in (False, True))
    used = ask(stack, whole, "early").json()["usage"]["input_tokens"]
    begin = ask(stack, stream, "early").text.partition("\n\n")[0]
    assert f'"input_tokens":{used},' in begin


def test_the_client_decides_by_cache_control(stack: Stack) -> None:
    def asked(control: str) -> str | None:
        return result(post(stack, "control", headers={"cache-control": control}))

    assert [asked("no-store"), asked("max-age=0, No-Store")] == [None, None]
    assert [asked("no-cache"), asked(""), asked("no-cache"), asked("no-store"), asked("max-age=5")] == [
        "miss", "hit", "miss", None, "hit",
    ]  # fmt: skip


def test_a_tenant_never_gets_the_reply_of_another_one() -> None:
    secrets, entries = dict[str, str](), dict[str, Any]()
    for name, team in (("a", None), ("b", None), ("red", "x"), ("blue", "x")):
        secrets[name], entry = key(name, **({} if team is None else {"team": team}))
        entries |= entry
    for shared, expected in ((False, ["miss", "miss", "miss", "hit"]), (True, ["miss", "hit", "hit", "hit"])):
        with Stack(config={"reply_cache": {"shared": shared}, "keys": entries}) as stack:
            assert [result(post(stack, secret=secret)) for secret in secrets.values()] == expected
            assert worked(stack) == expected.count("miss")


def test_models_and_keys_outside_ask_a_worker() -> None:
    (one, entry), (other, entry_of_other) = key("one"), key("other")
    with Stack(config={"reply_cache": {"keys": ["one"], "models": ["alias"]}, "keys": entry | entry_of_other}) as stack:
        assert [result(post(stack, secret=secret)) for secret in (one, other, one)] == ["miss", None, "hit"]


@pytest.mark.parametrize("fault", ["reset@2", "fin@2", "eof@2", "status:500", "reset"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_fails_is_not_kept(stack: Stack, fault: str, stream: bool) -> None:
    text = scripted(text=f"a b c d {fault} {stream}", fault=fault)
    for _ in range(2):
        try:
            assert result(post(stack, text, stream=stream)) != "hit"
        except httpx.RemoteProtocolError:
            assert stream
        assert stack.record()["cache"] == "miss"
    assert not stack.service("reply_cache").flights


def test_a_reply_whose_client_left_is_not_kept(stack: Stack) -> None:
    body = chat(scripted(text="a b c d left", fault="stall@2"), temperature=0, stream=True)
    client = raw_request(stack, body)
    assert b"200 OK" in client.recv(65536)
    client.close()
    until(lambda: not stack.service("reply_cache").flights)
    assert stack.record()["outcome"] == "cancelled"
    assert stack.service("reply_cache").bytes == sum(len(one) + 512 for _, one in held(stack))


def held(stack: Stack) -> list[tuple[float, bytes]]:
    return list(stack.service("reply_cache").cached.values())


def test_a_stream_that_another_worker_went_on_with_is_not_kept() -> None:
    with Stack(({}, {}), config={"reply_cache": {}}) as stack:
        for tries in range(8):  # until the worker that breaks is asked first
            kept = len(stack.service("reply_cache").cached)
            stack.sim.fault("reset@2", 1)
            post(stack, f"a stream that goes on {tries}", stream=True, max_tokens=9)
            if stack.record()["continued"]:
                break
        record = stack.record()
        assert (record["outcome"], record["cache"], len(record["continued"])) == ("ok", "miss", 1)
        assert len(stack.service("reply_cache").cached) == kept


def test_a_filtered_reply_is_not_kept(stack: Stack) -> None:
    text = scripted(text="cut by a filter", finish="content_filter")
    for stream in (False, True, False, True):
        reply = post(stack, text, stream=stream)
        assert (result(reply), "content_filter" in reply.text) == ("miss", True)


def test_reasoning_calls_and_logprobs_are_replayed(stack: Stack) -> None:
    script = scripted(reasoning="so", text="it is", tool_calls=[{"name": "f", "arguments": '{"a": 1}'}])
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for members in ({"tools": [tool]}, {"logprobs": True, "top_logprobs": 2}):
        text = script if "tools" in members else "some words"
        whole, again = (post(stack, text, **members).json() for _ in range(2))
        assert unlike(whole, again) <= NEW
        stream = post(stack, text, stream=True, **members)
        assert result(stream) == "hit"
        (said,) = heard(CHATS[1][0], stream.content)[:1]
        assert said.complete
        assert all(
            word in stream.text for word in (['"so"', '{\\"a\\": 1}'] if "tools" in members else ["top_logprobs"])
        )


@pytest.mark.parametrize("after", AFTERS)
def test_guards_see_what_is_replayed_and_what_they_refuse_is_not_kept(after: str) -> None:
    with guard() as service:
        guards = {"g": {"url": service.url, "before": False, "after": after}}
        with Stack(config={"reply_cache": {}, "guards": guards}) as stack:
            text = scripted(text=f"a secret {TEXT}")
            for stream in (False, True):
                service.decide = lambda question: {"action": "refuse"}
                for _ in range(2):
                    refused = post(stack, text, stream=stream)
                    assert refused.status_code in REFUSED
                    assert result(refused) == "miss"
            service.decide = lambda question: ALLOW
            assert result(post(stack, text)) == "miss"
            for stream in (False, True):
                service.asked.clear()
                reply = post(stack, text, stream=stream)
                assert result(reply) == "hit"
                assert "secret" in reply.text
                assert "secret" in "".join("".join(texts) for texts in service.texts("after"))
            service.decide = lambda question: {"action": "refuse"}
            for stream in (False, True):
                refused = post(stack, text, stream=stream)
                assert refused.status_code in REFUSED
                assert "secret" not in refused.text
            service.decide = lambda question: {
                "action": "replace",
                "texts": [shown["text"].replace("secret", "******") for shown in question["texts"]],
            }
            for stream in (False, True):
                assert "secret" not in post(stack, text, stream=stream).text


def test_a_reply_whose_client_left_before_a_guard_had_answered_is_not_kept() -> None:
    with guard() as service:
        guards = {"g": {"url": service.url, "before": False, "after": "whole", "timeout_s": 60}}
        with Stack(config={"reply_cache": {}, "guards": guards}) as stack:
            service.held.clear()
            client = raw_request(stack, chat("left", temperature=0))
            until(lambda: bool(service.asked))
            client.close()
            assert stack.record()["outcome"] == "cancelled"
            service.held.set()
            assert not stack.service("reply_cache").cached


def test_a_text_that_a_guard_replaced_is_served_where_guards_see_replies() -> None:
    (one, entry), (other, entry_of_other) = key("one", team="x"), key("other", team="x")
    with guard() as service:
        service.decide = lambda question: {"action": "replace", "texts": ["masked" for _ in question["texts"]]}
        guards = {"g": {"url": service.url, "before": False, "after": "whole", "keys": ["one"]}}
        with Stack(config={"reply_cache": {}, "guards": guards, "keys": entry | entry_of_other}) as stack:
            text = scripted(text="plain")
            got = [post(stack, text, secret=secret) for secret in (one, other, one, other)]
            assert [result(reply) for reply in got] == ["miss", "miss", "hit", "hit"]
            said = [reply.json()["choices"][0]["message"]["content"] for reply in got]
            assert said == ["masked", "plain", "masked", "plain"]


def test_a_model_that_answers_in_place_of_another_has_its_own_replies() -> None:
    models = {"away": {**GONE, "fallback": ["m"]}}
    with Stack(config={"reply_cache": {}, "models": models}) as stack:
        got = [post(stack, "x", model=model) for model in ("away", "away", "m")]
        assert [result(reply) for reply in got] == ["miss", "hit", "hit"]
        assert not stack.service("reply_cache").flights
        assert got[1].headers["x-dragoman-model"] == "m"


def test_equal_requests_at_once_ask_one_worker() -> None:
    with Stack(({"fault": "stall@before"},), config={"reply_cache": {}}) as stack, ThreadPoolExecutor(8) as threads:
        entries = stack.service("reply_cache")
        replies = [threads.submit(post, stack, "same", stream=bool(at % 2)) for at in range(8)]
        until(lambda: entries.waiting == 7)
        until(lambda: worked(stack) == 1)
        stack.loop.call_soon_threadsafe(stack.sim.go_on)
        assert sorted(str(result(one.result())) for one in replies) == ["hit"] * 7 + ["miss"]
        hits = [record for record in stack.records() if record["cache"] == "hit"]
        assert {(record["usage"]["input"], record["usage"]["output"]) for record in hits} == {(0, 0)}
        assert worked(stack) == 1
        assert (entries.waiting, entries.flights) == (0, {})


def test_those_that_wait_ask_a_worker_if_the_first_one_fails() -> None:
    with Stack(({"fault": "stall@before"},), config={"reply_cache": {}, "retry": {"attempts": 1}}) as stack:
        entries = stack.service("reply_cache")
        client = raw_request(stack, chat("same", temperature=0))
        until(lambda: worked(stack) == 1)
        with ThreadPoolExecutor(3) as threads:
            replies = [threads.submit(post, stack, "same") for _ in range(3)]
            until(lambda: entries.waiting == 3)
            client.close()
            until(lambda: worked(stack) == 4)
            stack.loop.call_soon_threadsafe(stack.sim.go_on)
            assert [result(one.result()) for one in replies] == ["miss"] * 3
        assert (entries.waiting, entries.flights) == (0, {})


def test_nobody_waits_for_a_client_that_reads_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "LONGEST_WAIT_S", 0.3)
    config = {"reply_cache": {"max_bytes": "256MiB", "max_entry_bytes": "64MiB"}}
    with Stack(({"max_model_len": 10_000_000},), config=config) as stack:
        entries = stack.service("reply_cache")
        body = chat(scripted(pieces=["x" * 10_000] * 3000), temperature=0, stream=True, max_tokens=1_000_000)
        client = raw_request(stack, body)
        assert b"200 OK" in client.recv(1000)
        until(lambda: bool(entries.flights))
        (slow,) = entries.flights.values()
        for expected in ("miss", "hit"):
            reply = httpx.post(stack.url + PATH, json={**body, "stream": False}, timeout=30)
            assert (reply.status_code, result(reply)) == (200, expected)
        assert slow not in entries.flights.values()
        client.close()
        until(lambda: stack.records()[-1]["outcome"] == "cancelled")
        assert (entries.waiting, entries.flights, slow.waiting) == (0, {}, set())
        assert entries.bytes == sum(len(one) + 512 for _, one in held(stack))


def test_those_that_wait_go_on_once_the_reply_is_too_large_to_be_kept() -> None:
    config = {"reply_cache": {"max_entry_bytes": 2000}}
    with Stack(({"fault": "stall@20"},), config=config) as stack, ThreadPoolExecutor(1) as threads:
        text = scripted(pieces=["x" * 300] * 40)
        client = raw_request(stack, chat(text, temperature=0, stream=True, max_tokens=5000))
        until(lambda: worked(stack) == 1)
        reply = threads.submit(post, stack, text, max_tokens=5000)
        until(lambda: worked(stack) == 2)
        stack.loop.call_soon_threadsafe(stack.sim.go_on)
        assert result(reply.result()) == "miss"
        client.close()


def test_clients_that_wait_and_leave_leave_nothing() -> None:
    with Stack(({"fault": "stall@before"},), config={"reply_cache": {}}) as stack:
        entries = stack.service("reply_cache")
        first = raw_request(stack, chat("same", temperature=0))
        until(lambda: worked(stack) == 1)
        for _ in range(20):
            client = raw_request(stack, chat("same", temperature=0))
            until(lambda: entries.waiting == 1)
            client.close()
            until(lambda: entries.waiting == 0)
        (flight,) = entries.flights.values()
        assert not flight.waiting
        first.close()


def test_a_hit_is_a_request_that_costs_nothing(stack: Stack) -> None:
    post(stack, "price", max_tokens=9)
    cost = stack.record()["cost"]
    reply = post(stack, "price", max_tokens=9)
    record = stack.record()
    assert reply.json()["usage"]["total_tokens"] > 0
    assert (record["cost"], record["saved"], record["usage"]["input"]) == (0, cost, 0)
    page = httpx.get(stack.url + "/metrics").text
    assert 'dragoman_reply_cache_requests_total{model="m",result="hit"}' in page
    assert 'dragoman_reply_cache_saved_tokens_total{kind="input",model="m"}' in page


def test_limits_count_a_hit_as_a_request_without_tokens() -> None:
    limits = [
        {"name": "r", "kind": "requests", "limit": 6, "scope": ["key"]},
        {"name": "t", "kind": "tokens", "limit": 100, "scope": ["key"]},
    ]
    with Stack(config={"reply_cache": {}, "limits": limits}) as stack:
        got = [post(stack, "x", max_tokens=50, stream=at % 2 == 1) for at in range(7)]
        assert [result(one) for one in got] == ["miss", *["hit"] * 5, None]
        assert got[-1].status_code == 429
        assert stack.record()["limit"] == "r"


def test_a_reply_that_is_too_large_is_not_kept() -> None:
    with Stack(config={"reply_cache": {"max_entry_bytes": 2000, "max_bytes": 4000}}) as stack:
        for stream in (False, True):
            for words in (2000, 2):
                text = scripted(text=f"{stream} " + "word " * words)
                got = [result(post(stack, text, stream=stream, max_tokens=4000)) for _ in range(2)]
                assert got == ["miss", "miss" if words > 2 else "hit"]
        assert 0 < stack.service("reply_cache").bytes <= 4000


def test_a_large_reply_is_replayed_whole_and_as_a_stream() -> None:
    with Stack(({"max_model_len": 1_000_000},), config={"reply_cache": {}}) as stack:
        text = scripted(pieces=["x" * 1000] * 300)
        got = [post(stack, text, stream=stream, max_tokens=100_000) for stream in (False, False, True)]
        assert [result(one) for one in got] == ["miss", "hit", "hit"]
        whole, again = (one.json()["choices"] for one in got[:2])
        assert whole == again
        pieces = [json.loads(line[6:])["choices"] for line in got[2].text.splitlines() if line.startswith("data: {")]
        said = "".join(choices[0]["delta"].get("content") or "" for choices in pieces if choices)
        assert said == whole[0]["message"]["content"]
        assert len(said) > 1 << 18


def test_a_reload_keeps_the_replies_and_a_reply_ends_with_its_age() -> None:
    with Stack(config={"reply_cache": {}}) as stack:
        post(stack)
        stack.run(stack.gateway.reload(stack.config({"reply_cache": {"max_bytes": "1MiB"}})))
        assert result(post(stack)) == "hit"
        stack.service("reply_cache").clock = lambda: float("inf")
        assert result(post(stack)) == "miss"
        stack.run(stack.gateway.reload(stack.config({"reply_cache": {"max_bytes": 1024, "max_entry_bytes": 256}})))
        assert stack.service("reply_cache").bytes <= 1024


# -- the entries ----------------------------------------------------------------------------------------------------


def test_no_more_bytes_are_held_than_allowed_whatever_their_sizes() -> None:
    draw, now = random.Random(5), [0.0]
    entries = Entries(lambda: now[0])
    entries.bound(20_000, 5_000, 10.0)
    made: dict[bytes, float] = {}
    taken = 0
    for step in range(5_000):
        now[0] += draw.random()
        name = b"%d" % draw.randrange(40)
        match draw.randrange(4):
            case 0:
                entries.put(name, "", bytes(draw.randrange(7_000)))
                made[name] = now[0]
            case 1:
                size = draw.randrange(4_000)
                taken += size if entries.take(size) else 0
            case 2:
                entries.give_back(taken)
                taken = 0
            case _:
                if entries.get(name) is not None:
                    assert now[0] - made[name] < 10.0
        held = sum(len(entry) + 512 for _, entry in entries.cached.values())
        assert entries.bytes == held + taken <= 20_000, step
        assert all(len(entry) <= 5_000 for _, entry in entries.cached.values())


def test_the_reply_that_was_unused_longest_goes_first() -> None:
    entries = Entries(lambda: 0.0)
    entries.bound(4_000, 2_000, 10.0)
    for name in (b"a", b"b", b"c"):
        entries.put(name, "", bytes(700))
    assert entries.get(b"a") is not None
    entries.put(b"d", "", bytes(700))
    assert [name for name in (b"a", b"b", b"c", b"d") if entries.get(name) is not None] == [b"a", b"c", b"d"]


def test_a_reply_is_what_its_events_make() -> None:
    raw = Raw(b'[{"token":"a"},{"token":"b"}]')
    parts = [
        ReplyPart("thinking", "hm"),
        ReplyPart("text", "word " * 300),
        ReplyPart("tool", "{}", "call", "f"),
        ReplyPart("text", "ab", tokens=(1, 2), logprobs=(raw,)),
        ReplyPart("refusal", ""),
    ]
    choices = [ReplyChoice(0, parts, "tool_calls", "tool_calls"), ReplyChoice(1, [], "length", "length", "x", None, 5)]
    reply = Reply(Start("chatcmpl-1", "m", 5, "f"), choices, Usage(1, 2))
    assert fold(events_of(reply)) == reply
    assert encode(decode_reply(encode(reply))) == encode(reply)
    two = Reply(reply.start, [ReplyChoice(0, [ReplyPart("text", "abab", logprobs=(raw, Raw(b"[ ]"), raw))])])
    (joined,) = fold(events_of(two)).choices[0].logprobs
    assert len(json.loads(bytes(joined))) == 4
