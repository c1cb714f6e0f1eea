"""What is read of a prompt: beginnings that match as far as two prompts are the same, for every dialect alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Breaker
from gateway.core.estimate import IMAGE
from gateway.core.http import JSON_TYPE, Request
from gateway.core.messages import Chat, Complete, Image, Message, Text, Tool, ToolCall
from gateway.core.routing_facts import RoutingFacts, home_of
from gateway.fleet.pick.prefix_index import PrefixIndex
from gateway.fleet.pick.reading import ENDS, OPENING, STEP, WHOLE, describe, session_of
from gateway.fleet.worker import Worker
from tests.support.clients import DIALECTS, Way, ways


def read(op: Any, salt: str | None = None) -> RoutingFacts:
    routing = RoutingFacts()
    describe(op, routing, salt, True)
    return routing


def chat(*texts: str, tools: tuple[Tool, ...] = ()) -> Chat:
    roles = ["user", "assistant"] * len(texts)
    return Chat(
        model="m",
        messages=tuple(Message(role, (Text(text),)) for role, text in zip(roles, texts, strict=False)),
        tools=tools,
    )


def common(one: RoutingFacts, other: RoutingFacts) -> int:
    found = 0
    for mine, theirs in zip(one.keys, other.keys, strict=False):
        if mine != theirs:
            break
        found += 1
    return found


@given(st.lists(st.text(max_size=700), min_size=1, max_size=8), st.lists(st.text(max_size=700), max_size=3))
def test_a_prompt_that_goes_on_has_all_beginnings(texts: list[str], more: list[str]) -> None:
    before, after = read(chat(*texts)), read(chat(*texts, *more))
    assert list(after.keys[: len(before.keys)]) == list(before.keys)
    assert len(before.keys) <= len(before.ends)


@given(st.lists(st.tuples(st.text(max_size=700), st.text(max_size=700)), min_size=1, max_size=8), st.integers(0, 2))
def test_a_text_is_read_alike_in_one_part_and_in_several(texts: list[tuple[str, str]], images: int) -> None:
    def read_as(*turns: tuple[Text, ...]) -> RoutingFacts:
        messages = [Message("user", (Text("hello"),)), Message("assistant")]
        messages += [Message(role, parts) for role, parts in zip(["user", "assistant"] * 4, turns, strict=False)]
        if images:
            messages.append(Message("user", tuple(Image("https://images.test/1") for _ in range(images))))
        return read(Chat(model="m", messages=tuple(messages)))

    one = read_as(*[(Text(front + back),) for front, back in texts])
    other = read_as(*[(Text(front), Text(back)) for front, back in texts])
    assert (one.keys, one.prompt, one.system_tokens) == (other.keys, other.prompt, other.system_tokens)
    assert one.prompt >= images * IMAGE
    assert home_of(one.first_texts) == home_of(other.first_texts)


@pytest.mark.parametrize("at", [0, 300, 5_000, WHOLE - 1, WHOLE + STEP + 5])
def test_a_difference_ends_the_match_where_it_is(at: int) -> None:
    text = "x" * 100_000
    one, other = read(chat(text)), read(chat(text[:at] + "y" + text[at + 1 :]))
    matched = common(one, other)
    assert matched < len(one.keys)
    end = one.ends[matched - 1] * 4 if matched else 0
    assert end <= at < one.ends[matched] * 4


def test_the_prompt_is_tools_then_messages() -> None:
    tool = Tool("look", "d" * 600, msgspec.Raw(b'{"type":"object"}'))
    assert common(read(chat("a" * 900, tools=(tool,))), read(chat("b" * 900, tools=(tool,)))) == 2
    assert common(read(chat("a" * 900, tools=(tool,))), read(chat("a" * 900))) == 0


def test_token_ids_match_as_text_does() -> None:
    ids = tuple(range(50_000))
    one = read(Complete(model="m", prompts=(ids,)))
    other = read(Complete(model="m", prompts=((*ids[:1000], 7, *ids[1001:]),)))
    assert one.prompt == 50_000
    assert other.ends[common(one, other) - 1] <= 1000 < other.ends[common(one, other)]


def test_images_count_by_their_content() -> None:
    def pictured(data: str) -> RoutingFacts:
        parts = (Image("data:image/png;base64," + data), Text("q" * 600))
        return read(Chat(model="m", messages=(Message("user", parts),)))

    big = "A" * 1_000_000
    assert common(pictured(big), pictured(big)) == len(pictured(big).keys) == 2
    assert common(pictured(big), pictured(big + "A")) == 0
    assert common(pictured("A" * 10), pictured("B" + "A" * 9)) == 0
    assert pictured(big).prompt < 2_000, "the bytes of an image are no text"


def test_tool_calls_and_salts_count() -> None:
    def called(arguments: str) -> RoutingFacts:
        call = ToolCall("id", "look", arguments)
        return read(Chat(model="m", messages=(Message("user", (Text("hi"),)), Message("assistant", (call,)))))

    assert common(called("1" * 600), called("2" * 600)) == 0
    op = chat("a" * 600)
    assert common(read(op, "one"), read(op, "two")) == 0
    assert home_of(read(op, "one").first_texts) != home_of(read(op, "two").first_texts)


def test_later_turns_belong_where_the_first_did() -> None:
    one, later = read(chat("a" * 3000)), read(chat("a" * 3000, "b" * 3000, "c"))
    assert home_of(one.first_texts) == home_of(later.first_texts)
    short = read(chat("Hi!", "Hello, what can I do?", "Tell me"))
    assert (
        home_of(short.first_texts) == home_of(read(chat("Hi!")).first_texts) != home_of(read(chat("Hi?")).first_texts)
    )
    assert (one.system_tokens, later.system_tokens) == (None, 0)


def asked(system: str, *texts: str) -> RoutingFacts:
    messages = [Message(role, (Text(text),)) for role, text in zip(["user", "assistant"] * 9, texts, strict=False)]
    return read(Chat(model="m", messages=(Message("system", (Text(system),)), *messages)))


@pytest.mark.parametrize("size", [OPENING + 1, WHOLE + 1])
def test_conversations_that_mostly_are_one_system_prompt_have_a_place_in_common(size: int) -> None:
    system = "x" * size
    one, other = asked(system, "Why?"), asked(system, "How?", "So.", "And then?")
    assert one.system_texts
    assert home_of(one.system_texts) == home_of(other.system_texts)
    assert home_of(one.first_texts) != home_of(other.first_texts)
    assert home_of(one.system_texts) != home_of(asked(system[:-1] + "y", "Why?").system_texts)
    assert not asked("x" * OPENING, "Why?").system_texts, "it is soon computed again"
    assert not asked(system, "y" * (size + 1)).system_texts, "most of it is the question"


@pytest.mark.long
def test_a_place_is_the_same_in_every_process() -> None:
    code = (
        "from gateway.core.routing_facts import RoutingFacts; from gateway.core.messages import Chat, Message, Text\n"
        "from gateway.core.routing_facts import home_of\nfrom gateway.fleet.pick.reading import describe, session_of\n"
        "d = RoutingFacts()\n"
        "describe(Chat(model='m', messages=(Message('user', (Text('hello'),)),)), d, 'salt', True)\n"
        "print([home_of(d.first_texts), session_of([(b'x', b's')], frozenset([b'x']))])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    home, session = json.loads(said.pop())
    assert home == home_of(read(chat("hello"), "salt").first_texts)
    assert session == session_of([(b"x", b"s")], frozenset([b"x"]))


@pytest.mark.parametrize("way", [way for way in ways() if way.operation == "chat"], ids=str)
def test_every_dialect_has_the_same_place(way: Way) -> None:
    """One conversation in two dialects is one conversation."""
    body = json.dumps(way.body("Hello there. " * 100)).encode()
    op = DIALECTS[way.dialect].read(
        Request("POST", way.route.path, [JSON_TYPE], body, way.example.query, way.route.name, {}, "id")
    )
    plain = Chat(model="m", messages=(Message("user", (Text("Hello there. " * 100),)),))
    assert home_of(read(op).first_texts) == home_of(read(plain).first_texts)
    assert common(read(op), read(plain)) == len(read(plain).keys) == 5


@given(st.lists(st.text(max_size=9_000), min_size=1, max_size=5), st.text(max_size=700), st.text(max_size=700))
def test_a_later_turn_names_the_one_before_it(texts: list[str], reply: str, question: str) -> None:
    texts = texts if len(texts) % 2 else [*texts, "?"]
    before, after = read(chat(*texts)), read(chat(*texts, reply, question))
    assert after.previous_key == before.prompt_key
    assert after.previous_tokens == sum(map(len, texts)) // 4


def test_a_turn_with_messages_that_have_no_parts_is_read() -> None:
    empty = Chat(model="m", messages=(Message("user", ()), Message("assistant", ()), Message("user", ())))
    assert read(empty).previous_key == read(Chat(model="m", messages=(Message("user", ()),))).prompt_key


def test_an_empty_system_message_moves_no_conversation() -> None:
    plain = chat("hello")
    led = Chat(model="m", messages=(Message("system", (Text(""),)), *plain.messages))
    assert read(led).first_texts == read(plain).first_texts == ("", "", "hello", "hello")


# -- the index ------------------------------------------------------------------------------------------------------


def worker(name: str) -> Worker:
    return Worker(name, Breaker(), None)


def test_the_index_forgets_what_was_sent_longest_ago() -> None:
    index, one = PrefixIndex(most=100), worker("a")
    index.add(range(50), one)
    for start in range(1000, 3000, 10):
        index.add(range(start, start + 10), one)
        assert len(index) <= 210
    assert index.match(range(50), ENDS) == []
    assert index.match(range(2990, 3000), ENDS) == [(index.bit(one), ENDS[9])]


def test_the_index_knows_who_was_sent_a_whole_prompt_and_forgets_it_too() -> None:
    index, a, b = PrefixIndex(most=100), worker("a"), worker("b")
    index.add([1, 2], a, 7)
    index.add([1, 2], b, 8)
    index.add([], b, 7)  # shorter than the first prefix
    assert [index.named(index.having(key)) for key in (7, 8, 9)] == [[a, b], [b], []]
    a.lives += 1
    index.forget_lost()
    assert index.named(index.having(7)) == [b]
    for whole in range(1_000, 1_300):
        index.add([], b, whole)
        assert len(index) <= 210
    assert index.having(7) == 0


def test_the_index_knows_how_far_each_worker_matches() -> None:
    index, a, b, c = PrefixIndex(), worker("a"), worker("b"), worker("c")
    index.add([1, 2, 3], a)
    index.add([1, 2], b)
    index.add([9], c)
    assert index.match([1, 2, 3, 4], ENDS) == [(index.bit(a), ENDS[2]), (index.bit(b), ENDS[1])]
    index.keep([b, c])
    assert index.match([1, 2, 3, 4], ENDS) == [(index.bit(b), ENDS[1])]
    assert index.match([], ENDS) == []


@given(
    sent=st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 1), max_size=12)), max_size=60),
    prompt=st.lists(st.integers(0, 1), max_size=12),
)
def test_the_index_finds_by_bisection_what_a_look_at_each_key_would_find(
    sent: list[tuple[int, list[int]]], prompt: list[int]
) -> None:
    workers = [worker(str(number)) for number in range(5)]
    index = PrefixIndex(most=40)
    keys = [hash(tuple(prompt[: end + 1])) for end in range(len(prompt))]
    for to, text in sent:
        index.add([hash(tuple(text[: end + 1])) for end in range(len(text))], workers[to])
    one_by_one: dict[Worker, int] = {}
    for key, end in zip(keys, ENDS, strict=False):
        for having in index.named(index.having(key)):
            one_by_one[having] = end
    found = index.match(keys, ENDS)
    assert {one: end for bits, end in found for one in index.named(bits)} == one_by_one
    assert [end for _, end in found] == sorted(set(one_by_one.values()), reverse=True)


def test_a_place_in_the_index_is_not_given_to_another_too_early() -> None:
    index, gone = PrefixIndex(most=10), worker("gone")
    index.add([1, 2, 3], gone)
    index.keep([])
    for number in range(200):
        new = worker(f"new{number}")
        index.add([number + 1000], new)
        assert index.match([1, 2, 3], ENDS) == []
        index.keep([])
    assert ENDS[0] == 256
