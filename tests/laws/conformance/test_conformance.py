"""Every dialect before every backend, over everything that a worker may say and every way in which it may fail.

The laws: a streamed reply folded is the buffered one, for us and for the client; a cut never looks complete; what is
written reads back; both lanes say the same; blocks cut anywhere are all the same; no reader breaks the lifecycle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import backends, dialects
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Failed
from gateway.core.lifecycle import Reply, fold
from tests.laws.conformance.cases import BACKENDS, CASES, DIALECTS, OPS, Case, Count, Watched, every, reply_wire, run
from tests.laws.conformance.clients import CLIENTS, Client, Heard
from tests.laws.conformance.folding import assert_incomplete, held
from tests.laws.conformance.scenarios import SCENARIOS
from tests.laws.conformance.workers import WORKERS
from tests.unit.core.replies import unfold


def cuts(stream: bytes, sizes: Iterator[int]) -> list[bytes]:
    blocks, at = [], 0
    while at < len(stream):
        size = next(sizes)
        blocks.append(stream[at : at + size])
        at += size
    return blocks


def expected(case: Case) -> Heard:
    """What the client should understand, from the scenario itself."""
    heard = Heard(complete=True)
    reply = case.scenario.heard()
    if reply.usage is not None:
        assert reply.usage.input is not None
        assert reply.usage.output is not None
        heard.usage = reply.usage.input, reply.usage.output
    for said in reply.choices:
        choice = heard.of(said.index)
        choice.text = said.text() or ""
        choice.thinking = said.text("thinking") or ""
        choice.refusal = said.text("refusal") or ""
        choice.calls = [[call.call_id, call.name, call.text] for call in said.calls]
        choice.logprobs = [[item["token"], item["logprob"]] for raw in said.logprobs for item in json.loads(bytes(raw))]
        own = case.client.words
        choice.finish = own.get(said.reason, said.reason)
        if isinstance(said.stop_sequence, str):
            choice.finish = own.get("stop_sequence", choice.finish)
        choice.stop = said.stop_sequence
    return heard


def visible(client: Client, heard: Heard) -> dict[str, Any]:
    """What can be compared: without that for which the client's wire has no word."""
    fields = ("text", "thinking", "refusal", "calls", "logprobs", "finish", "stop")
    choices = {
        index: {name: getattr(choice, name) for name in fields if client.tells(name)}
        for index, choice in heard.choices.items()
    }
    for choice in choices.values():
        choice["calls"] = [(call_id, name, _arguments(text)) for call_id, name, text in choice["calls"]]
    usage = heard.usage if client.tells("usage") else None
    choices = {index: choice for index, choice in choices.items() if any(choice.values())}
    return {"choices": choices, "usage": usage, "error": heard.error, "complete": heard.complete}


def _arguments(text: str) -> Any:
    """As JSON, where it is some: one wire has an object, another the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def content(reply: Reply, *, ids: bool = True) -> Any:
    """A reply without the order of its parts, which a whole reply does not tell; with the ids of its tokens or not."""
    choices = [
        (
            choice.index,
            [choice.text(kind) or "" for kind in ("text", "thinking", "refusal")],
            [(call.call_id, call.name, call.text) for call in choice.calls],
            [item for raw in choice.logprobs for item in json.loads(bytes(raw))],
            choice.tokens if ids else (),
            (choice.reason, choice.raw_reason, choice.stop_sequence),
        )
        for choice in reply.choices
    ]
    usage = (reply.usage.input, reply.usage.output) if reply.usage is not None else None
    return (reply.start.created, choices, usage)


@pytest.mark.parametrize("name", dialects.REGISTRY)
def test_a_dialect_has_its_clients(name: str) -> None:
    found = {client.operation for client in CLIENTS if client.dialect == name}
    fields = DIALECTS[name].fields
    assert found == {"chat", "complete"} & set(fields), f"{name}: a client for each operation that it has"


@pytest.mark.parametrize("name", backends.REGISTRY)
@pytest.mark.parametrize("operation", OPS)
def test_a_backend_has_its_worker(name: str, operation: str) -> None:
    wire = reply_wire(name, operation)
    assert wire in WORKERS, f"tests/laws/conformance/workers.py does not speak {wire}"


def test_what_is_left_out_says_why() -> None:
    """A blind spot must exist, and have a reason."""
    known = {need for scenario in SCENARIOS for need in scenario.needs} | {"finish", "stop", "usage", "logprobs"}
    for client in CLIENTS:
        assert set(client.blind) <= known, client.name
        assert all(client.blind.values())
    names = {scenario.name for scenario in SCENARIOS} | known | {"chat", "complete"}
    for wire, worker in WORKERS.items():
        assert set(worker.lacks) <= names, wire
        assert all(worker.lacks.values())


def streamed_is_buffered(case: Case) -> int:
    """For us: the events of a stream, folded, are those of the whole reply."""
    backend, op = BACKENDS[case.backend], case.op()
    if "logprobs" not in case.scenario.asks:
        op.logprobs = None  # a dialect may ask for them by itself
    reader = backend.reader(op)
    streamed = fold([*(event for frame in case.frames for event in reader.feed(frame)), *reader.eof()])
    whole = fold(backend.read(case.worker.whole(case.scenario), op))
    assert content(streamed) == content(whole)
    assert content(streamed, ids=False) == content(case.scenario.heard(), ids=False)
    return 1


def client_reads_the_same(case: Case) -> int:
    """From a stream and from a whole reply, and it is what the scenario holds."""
    client, backend, dialect = case.client, BACKENDS[case.backend], DIALECTS[case.client.dialect]
    wanted = visible(client, expected(case))
    out, lane, _ = run(case, case.frames)
    assert lane.done
    assert lane.error is None
    assert visible(client, client.hear(out)) == wanted
    assert (lane.usage is not None) == (case.scenario.usage != "absent")
    op, response = case.op(stream=False), case.worker.whole(case.scenario)
    if case.lane == "bytes":
        reply, usage = dialect.passthrough[backend.reply_wire(op)].whole(response, op)
        assert usage == lane.usage
    else:
        reply = dialect.write(fold(backend.read(response, op)), op)
    assert reply.status == 200
    whole = visible(client, client.read(reply.body))
    if case.scenario.usage == "absent":
        whole["usage"] = None  # some clients' types want counts, whether there are any or not
    assert whole == wanted
    return 1


def blocks_do_not_matter(case: Case) -> int:
    """The stream is the same if its blocks are cut elsewhere."""
    stream = b"".join(case.frames)
    whole, _, _ = run(case, [stream])
    random = Random(str(case))
    ways = [case.frames, cuts(stream, iter(lambda: 1, 0))]
    ways += [cuts(stream, iter(lambda: random.randint(1, 60), 0)) for _ in range(3)]
    for blocks in ways:
        out, lane, _ = run(case, blocks)
        assert out == whole
        assert lane.done
    return len(ways)


UNICODE = {
    (case.client.name, reply_wire(case.backend, case.client.operation), case.lane): case
    for case in CASES
    if case.scenario.name == "unicode"
}


@pytest.mark.parametrize("case", UNICODE.values(), ids=str)
def test_text_may_be_cut_at_every_byte(case: Case, record_property: Count) -> None:
    """Separators of Unicode, CJK and emoji of many bytes, cut within each of them; once for each wire."""
    stream = b"".join(case.frames)
    whole, _, _ = run(case, [stream])
    for place in range(len(stream)):
        if place % 16 and stream[place] < 0x80 and stream[place] not in b"\\\n":
            continue
        out, _, _ = run(case, [stream[:place], stream[place:]])
        assert out == whole, place
    record_property("cases", len(stream))


def what_is_written_reads_back(case: Case) -> int:
    """Where the client's stream is a wire that a backend reads, the same events come of it."""
    readers = [name for name in BACKENDS if reply_wire(name, case.client.operation) == case.client.speaks]
    if not readers or {choice.reason for choice in case.scenario.heard().choices} & set(case.client.words):
        return 0
    out, _, watched = run(case, case.frames)
    op = case.op()
    direct = fold(BACKENDS[case.backend].read(case.worker.whole(case.scenario), op))
    for name in readers:
        reader = BACKENDS[name].reader(op)
        again = fold([*reader.feed(out), *reader.eof()])
        found, wanted = content(again, ids=False), content(direct, ids=False)
        if not case.client.tells("usage") or not op.include_usage:
            found, wanted = found[:-1], wanted[:-1]
        stop = case.client.tells("stop")
        assert _in_openais_words(found, stop) == _in_openais_words(wanted, stop)
        assert content(fold(unfold(again))) == content(again)
    assert case.lane == "bytes" or watched.over
    return len(readers)


def _in_openais_words(found: Any, stop: bool) -> Any:
    """Without the worker's own word for why a choice ended, and without the stop sequence unless it can be told."""
    created, choices, *usage = found
    ends = [(reason, sequence if stop else None) for *_, (reason, _, sequence) in choices]
    return (created, [choice[:-1] for choice in choices], ends, *usage)


def both_lanes_say_the_same(case: Case) -> int:
    if case.lane != "bytes":
        return 0
    by_bytes, lane, _ = run(case, case.frames)
    by_events, other, _ = run(Case(case.client, case.backend, case.scenario), case.frames)
    assert visible(case.client, case.client.hear(by_bytes)) == visible(case.client, case.client.hear(by_events))
    assert (lane.usage, lane.done) == (other.usage, other.done)
    return 1


def a_cut_never_looks_complete(case: Case) -> int:
    """After every frame and at some bytes, by a lost connection and by a clean end."""
    frames = case.frames
    stream = b"".join(frames)
    mark = len(stream) - len(frames[-1])
    random = Random(str(case))
    places = {len(b"".join(frames[:count])) for count in range(len(frames))}
    places |= {random.randrange(mark) for _ in range(8 if mark else 0)}
    plain = Case(case.client, case.backend, case.scenario)
    whole, _, _ = run(case, [stream])
    for place in sorted(places):
        _, _, watched = run(plain, [stream[:place]])
        out, lane, _ = run(case, [stream[:place]])
        assert_incomplete(case, out, lane, watched.seen)
        assert lane.error is not None
        assert lane.error.kind is Kind.TRUNCATED
        lost, lane = GatewayError(Kind.TIMEOUT, "silence"), case.open()[0]
        before = lane.feed(stream[:place])
        assert whole.startswith(before)
        told = lane.fail(lost)
        if before:
            assert_incomplete(case, before + told, lane, watched.seen, "silence")
    return len(places)


def every_choice_must_finish(case: Case) -> int:
    """The terminal mark after one of two choices is not an end."""
    if not case.worker.mark or case.scenario.name != "two choices":
        return 0
    frames = case.frames
    ended = next(place for place, frame in enumerate(frames) if b'"length"' in frame)
    blocks = [*frames[: ended + 1], frames[-1]]
    _, _, watched = run(Case(case.client, case.backend, case.scenario), blocks)
    out, lane, _ = run(case, blocks)
    assert_incomplete(case, out, lane, watched.seen)
    return 1


LAWS = (
    streamed_is_buffered,
    client_reads_the_same,
    blocks_do_not_matter,
    what_is_written_reads_back,
    both_lanes_say_the_same,
    a_cut_never_looks_complete,
    every_choice_must_finish,
)


@every
def test_every_law_holds(cases: list[Case], record_property: Count) -> None:
    """For scenarios that are drawn for each client, backend and lane."""
    record_property("cases", held(LAWS, Random(str(cases[0])).sample(cases, -(-len(cases) // 8))))


@pytest.mark.long
@every
def test_every_law_holds_for_every_scenario(cases: list[Case], record_property: Count) -> None:
    record_property("cases", held(LAWS, cases))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("operation", OPS)
@given(data=st.data())
def test_no_order_of_frames_breaks_the_lifecycle(name: str, operation: str, data: st.DataObject) -> None:
    """Frames of any scenarios, left out, doubled and in any order: exactly one end, nothing illegal before it."""
    backend = BACKENDS[name]
    worker = WORKERS[reply_wire(name, operation)]
    client = next(one for one in CLIENTS if (one.dialect, one.operation) == ("openai", operation))
    mine = [case.scenario for case in CASES if case.backend == name and case.client is client]
    if not mine:
        pytest.skip("this backend does not do this")
    chosen = data.draw(st.lists(st.sampled_from(mine), min_size=1, max_size=3))
    frames = [frame for scenario in chosen for frame in worker.frames(scenario)]
    frames = data.draw(st.lists(st.sampled_from([*frames, worker.broken("x")]), max_size=20))
    case = Case(client, name, chosen[0])
    watched = Watched(backend.reader(case.op()))
    for frame in frames:
        list(watched.feed(frame))
    list(watched.eof())
    assert watched.over
    assert list(watched.eof()) == []
    assert list(watched.feed(b"data: {}\n\n")) == []
    if not isinstance(watched.seen[-1], Failed):
        fold(watched.seen)
