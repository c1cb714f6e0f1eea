"""Every dialect before every backend, over everything that a worker may say and every way in which it may fail.

The laws: a streamed reply folded is the buffered one, for us and for the client; a cut never looks complete; what is
written reads back; both lanes say the same; blocks cut anywhere are all the same; no reader breaks the lifecycle.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import backends, dialects
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.events import Event, Failed, Finish
from gateway.core.http import Response
from gateway.core.lifecycle import Reply, fold
from gateway.core.ports import Lane
from tests.conformance.cases import (
    BACKENDS,
    CASES,
    DIALECTS,
    OPS,
    Case,
    Count,
    Watched,
    every,
    one_each,
    reply_wire,
    run,
)
from tests.conformance.clients import CLIENTS, Client, Heard
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.workers import WORKERS
from tests.core.replies import unfold
from tests.raised import raised


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
    reply = case.scenario.reply()
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
    """As JSON, where it is some: one wire has an object, another the text. Nothing is an empty object."""
    try:
        return json.loads(text or "{}")
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


# -- nothing is left out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", dialects.REGISTRY)
def test_a_dialect_has_its_clients(name: str) -> None:
    found = {client.operation for client in CLIENTS if client.dialect == name}
    fields = DIALECTS[name].fields
    assert found == {"chat", "complete"} & set(fields), f"{name}: a client for each operation that it has"


@pytest.mark.parametrize("name", backends.REGISTRY)
@pytest.mark.parametrize("operation", OPS)
def test_a_backend_has_its_worker(name: str, operation: str) -> None:
    wire = reply_wire(name, operation)
    assert wire in WORKERS, f"tests/conformance/workers.py does not speak {wire}"


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


# -- the same, however it comes -------------------------------------------------------------------------------------


def streamed_is_buffered(case: Case) -> int:
    """For us: the events of a stream, folded, are those of the whole reply."""
    backend, op = BACKENDS[case.backend], case.op()
    if "logprobs" not in case.scenario.asks:
        op.logprobs = None  # a dialect may ask for them by itself
    reader = backend.reader(op)
    streamed = fold([*(event for frame in case.frames for event in reader.feed(frame)), *reader.eof()])
    whole = fold(backend.read(case.worker.whole(case.scenario), op))
    assert content(streamed) == content(whole)
    assert content(streamed, ids=False) == content(case.scenario.reply(), ids=False)
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
    if not readers or {choice.reason for choice in case.scenario.reply().choices} & set(case.client.words):
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


# -- a cut never looks complete -------------------------------------------------------------------------------------


def assert_incomplete(case: Case, out: bytes, lane: Lane, events: list[Event], message: str | None = None) -> None:
    assert lane.error is not None
    assert not lane.done
    if not out:
        return
    heard = case.client.hear(out)
    assert not heard.complete
    assert heard.error == (message or lane.error.message)
    finished = {event.choice for event in events if isinstance(event, Finish)}
    assert {index for index, choice in heard.choices.items() if choice.finish is not None} <= finished


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


def an_error_amid_a_stream_is_told(case: Case) -> int:
    frames = case.frames
    count = 0
    for place in range(len(frames)):
        broken = case.worker.broken("boom")
        _, _, watched = run(Case(case.client, case.backend, case.scenario), frames[:place])
        out, lane, _ = run(case, [*frames[:place], broken, *frames[place:]])
        assert_incomplete(case, out, lane, watched.seen)
        assert lane.error is not None
        assert lane.error.blame is Blame.WORKER
        assert "boom" not in lane.error.message, "a worker's 5xx words are not the client's business"
        count += 1
    return count


def an_error_first_writes_nothing(case: Case) -> int:
    """A 200 whose first frame is an error: nothing is written, so that it can still be an error status."""
    out, lane, _ = run(case, [case.worker.broken("boom"), case.frames[-1]])
    assert out == b""
    assert lane.error is not None
    assert refused(case, lane.error) >= 400
    return 1


def nothing_and_a_page_are_no_reply(case: Case) -> int:
    bodies = (b"", b"\n\n", b"<html><body>Bad Gateway</body></html>", b"null\n\n")
    for body in bodies:
        is_no_reply(case, body)
    return 2 * len(bodies)


def is_no_reply(case: Case, body: bytes) -> None:
    out, lane, _ = run(case, [body])
    assert out == b""
    assert lane.error is not None
    assert lane.error.blame is Blame.WORKER
    whole = Response(200, [(b"content-type", b"application/json")], body)
    op, dialect, backend = case.op(stream=False), DIALECTS[case.client.dialect], BACKENDS[case.backend]

    def read() -> object:
        if case.lane == "bytes":
            return dialect.passthrough[backend.reply_wire(op)].whole(whole, op)
        return fold(backend.read(whole, op))

    error = raised(read)
    assert error.blame is Blame.WORKER
    assert "<" not in error.message


def only_the_terminal_mark_is_no_reply(case: Case) -> int:
    if not case.worker.mark:
        return 0  # this wire has no frame for it
    out, lane, _ = run(case, [case.frames[-1]])
    assert out == b""
    assert_incomplete(case, out, lane, [])
    return 1


def the_mark_before_the_finish_is_a_cut(case: Case) -> int:
    """An engine that dies may still say [DONE]."""
    if not case.worker.mark:
        return 0  # this wire has no frame for it
    frames = case.frames
    out, lane, watched = run(case, [*frames[:2], frames[-1]])
    assert_incomplete(case, out, lane, watched.seen)
    return 1


_JUNK = (b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"{}", b'{"choices":7}')


def junk_amid_a_stream_is_an_error(case: Case) -> int:
    frames = case.frames
    # Of wires without a mark of their own, every member of an event may be absent.
    junks = _JUNK if case.worker.mark else _JUNK[:4]
    for junk in junks:
        out, lane, _ = run(case, [*frames[:2], b"data: " + junk + b"\n\n", *frames[2:]])
        assert_incomplete(case, out, lane, [])
        assert lane.error is not None
        assert lane.error.blame is Blame.WORKER
    return len(junks)


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


# -- errors before a reply ------------------------------------------------------------------------------------------

_FAULTS = (
    (400, "top_k must be at least 1", Blame.CLIENT, True),
    (422, "no such thing", Blame.CLIENT, True),
    (413, "too long", Blame.CLIENT, True),
    (401, "Unauthorized", Blame.CLIENT, False),
    (404, "The model `sim` does not exist.", Blame.CLIENT, False),
    (429, "slow down", Blame.US, False),
    (500, "CUDA error", Blame.WORKER, False),
    (502, "bad gateway", Blame.WORKER, False),
    (503, "try later", Blame.US, False),
)


def refused(case: Case, error: GatewayError) -> int:
    """The status that the client sees; the answer must be one that it understands."""
    request = case.client.ask(case.scenario, stream=True)
    response = DIALECTS[case.client.dialect].refuse(error, request, case.op())[0]
    assert case.client.refused(response)
    return response.status


def a_workers_refusal_is_told(case: Case) -> int:
    """A 4xx about the request keeps its words and is no fault of the worker; of anything else only the kind is told."""
    for status, words, blame, quoted in _FAULTS:
        refusal_is_told(case, status, words, blame, quoted)
    return len(_FAULTS)


def refusal_is_told(case: Case, status: int, words: str, blame: Blame, quoted: bool) -> None:
    error = BACKENDS[case.backend].fault(case.worker.fault(status, words))
    assert error.upstream == status
    seen = refused(case, error)
    assert 400 <= seen < 600
    assert (words in error.message) == quoted
    if quoted:
        assert error.blame is blame
        assert 400 <= seen < 500
    else:
        assert error.blame is not Blame.CLIENT
        assert seen >= 500 or seen == 424, "a fault behind us is no fault of the client"


_PAGES = (b"<html><body>nginx</body></html>", b"", b"\xff", b"{}", b"[1]", b'"no"', b"null")


def a_page_is_never_quoted(case: Case) -> int:
    pages = list(itertools.product((400, 404, 500, 502, 503), _PAGES))
    for status, body in pages:
        error = BACKENDS[case.backend].fault(Response(status, [(b"content-type", b"text/html")], body))
        assert "html" not in error.message
        assert error.message
        assert refused(case, error) >= 400
    return len(pages)


def every_kind_of_error_has_its_form(case: Case) -> int:
    """Before a stream and within it, with everything said and with nothing."""
    errors = [GatewayError(kind, "sentence") for kind in Kind]
    for kind in Kind:
        more: dict[str, Any] = {"param": "messages.0", "code": "c", "retry_after": 0.2, "value": {"a": 1}}
        errors.append(GatewayError(kind, "sentence", upstream=500, **more))
    dialect = DIALECTS[case.client.dialect]
    for error in errors:
        assert 400 <= refused(case, error) < 600
        assert dialect.refuse(error, None, None)[0].status >= 400
        lane, _ = case.open()
        before = lane.feed(case.frames[0] + case.frames[1])
        heard = case.client.hear(before + lane.fail(error))
        assert "sentence" in (heard.error or "")
        assert not heard.complete
    return len(errors)


# -- the laws, each for every pair ----------------------------------------------------------------------------------

LAWS = (
    streamed_is_buffered,
    client_reads_the_same,
    blocks_do_not_matter,
    what_is_written_reads_back,
    both_lanes_say_the_same,
    a_cut_never_looks_complete,
    every_choice_must_finish,
)
FAILURES = (
    an_error_amid_a_stream_is_told,
    an_error_first_writes_nothing,
    nothing_and_a_page_are_no_reply,
    only_the_terminal_mark_is_no_reply,
    the_mark_before_the_finish_is_a_cut,
    junk_amid_a_stream_is_an_error,
    a_workers_refusal_is_told,
    a_page_is_never_quoted,
    every_kind_of_error_has_its_form,
)


def held(laws: tuple[Callable[[Case], int], ...], cases: list[Case]) -> int:
    """How many checks the laws made. A failure names its law and its case."""
    count = 0
    for law, case in itertools.product(laws, cases):
        try:
            count += law(case)
        except BaseException as error:
            error.add_note(f"{law.__name__}: {case}")
            raise
    return count


@every
def test_every_law_holds(cases: list[Case], record_property: Count) -> None:
    """For scenarios that are drawn for each client, backend and lane."""
    record_property("cases", held(LAWS, Random(str(cases[0])).sample(cases, -(-len(cases) // 4))))


@pytest.mark.long
@every
def test_every_law_holds_for_every_scenario(cases: list[Case], record_property: Count) -> None:
    record_property("cases", held(LAWS, cases))


@one_each
def test_every_failure_is_told(case: Case, record_property: Count) -> None:
    record_property("cases", held(FAILURES, [case]))


# -- the lifecycle holds, whatever comes ----------------------------------------------------------------------------


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
