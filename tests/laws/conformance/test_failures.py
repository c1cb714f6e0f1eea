"""Every way in which a worker may refuse, and pages of proxies that are no replies."""

from __future__ import annotations

import itertools
from typing import Any

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Response
from gateway.core.lifecycle import fold
from tests.laws.conformance.cases import BACKENDS, DIALECTS, Case, Count, one_each, run
from tests.laws.conformance.folding import assert_incomplete, held
from tests.support.raised import raised


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


@one_each
def test_every_failure_is_told(case: Case, record_property: Count) -> None:
    record_property("cases", held(FAILURES, [case]))
