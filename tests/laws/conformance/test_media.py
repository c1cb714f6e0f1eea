"""Sound and images: the laws of requests that are uploads, and of replies that pass as they come.

The requests and the workers' replies are those of the golden transcripts, with odd values put into them. JSON bodies of
these operations are among `tests.support.clients.WAYS`, and the transcripts themselves are cut at every frame and byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Request, Response
from gateway.core.messages import Media, Work
from gateway.core.ports import Capabilities
from gateway.core.upload import File, Form, InMemory
from gateway.wire import sse
from gateway.wire.openai.media.fields import FORMS, MANY, PATHS
from tests.laws.conformance.cases import BACKENDS, DIALECTS
from tests.laws.conformance.test_any_value import documents, drawn, strict
from tests.laws.golden.transcript import Message, files, load
from tests.support.clients import refusal
from tests.support.sampled import examples

SERVING = [name for name, dialect in DIALECTS.items() if dialect.fields.keys() & PATHS.keys()]
CAN = Capabilities("sim")
CONTENT = InMemory(b"content")
TEXTS = (
    "",
    "\0",
    "\u2028",
    "1e400",
    "-1",
    "9" * 400,
    "NaN",
    "[[",
    '{"a":',
    "true",
    "\r\n--edge--\r\n",
    '"',
    "x" * 9000,
)


class Sample(Struct, frozen=True):
    """A golden transcript whose worker answers: the operation, and what the worker says."""

    name: str
    dialect: str
    work: Work
    asked: Message
    answered: Message

    def __str__(self) -> str:
        return self.name

    @property
    def streamed(self) -> bool:
        return self.answered.header(b"content-type").startswith(b"text/event-stream")

    def op(self) -> Media:
        form = None
        if self.work in FORMS:
            fields = [("prompt", "hi"), ("model", "m"), ("stream", str(self.streamed).lower())]
            form = upload(self.work, [one for one in fields if self.work == "edit" or one[0] != "prompt"])
        return read(self.dialect, self.work, form, self.asked.body)


def upload(work: Work, fields: list[tuple[str, str]]) -> Form:
    return Form(tuple(fields), (File(FORMS[work][0], "a.bin", "audio/mpeg", 0, 7, b"content"),), CONTENT)


def read(dialect: str, work: Work, form: Form | None, body: bytes = b"") -> Media:
    kind = b"application/json" if form is None else b"multipart/form-data; boundary=edge"
    request = Request("POST", PATHS[work], [(b"content-type", kind)], body, b"api-version=2024-10-21", work, form=form)
    op = DIALECTS[dialect].read(request)
    assert isinstance(op, Media)
    op.model = op.model or "m"
    return op


def samples() -> Iterator[Sample]:
    works = {path: work for work, path in PATHS.items()}
    for path in files():
        found = load(path)
        at = found.made.get("worker >", " ").split(" ", 1)[1].partition("\n")[0]
        if at in works and found.answered is not None and found.answered.first == "200" and not found.answered.ending:
            name = f"{path.parent.name}/{path.stem}"
            yield Sample(name, path.parent.name, works[at], found.asked, found.answered)


SAMPLES = [one for one in samples() if b'{"' in one.answered.body]
STREAMED = [one for one in SAMPLES if one.streamed]


def told(dialect: str, error: GatewayError, *kinds: Kind) -> None:
    """The error is the worker's, or of one of `kinds`; in the client's form it is strict JSON."""
    assert error.kind in kinds or error.blame is not Blame.CLIENT or error.upstream is not None
    assert error.kind is not Kind.INTERNAL
    response = DIALECTS[dialect].refuse(error, None, None)[0]
    assert 400 <= response.status < 600
    assert strict(refusal(response))["error"]["message"]


@pytest.mark.parametrize("work", FORMS)
@pytest.mark.parametrize("dialect", SERVING)
def test_an_odd_text_of_an_upload_is_refused_or_passed_on(dialect: str, work: Work) -> None:
    """By one of the backends for each, which is drawn; a text that is passed on is the client's."""
    draw = Random(work)
    usual = {"model": "m", **({"prompt": "hi"} if work == "edit" else {})}
    fields = [one.name for one in DIALECTS[dialect].fields[work] if one.where == "body"]
    passed = 0
    for name in [*fields, *(f"{name}[]" for name in fields), *(f"{name}[a]" for name in fields), "unheard_of"]:
        bare = name.partition("[")[0]
        for text in TEXTS:
            try:
                op = read(dialect, work, upload(work, [*({**usual, name: text}).items()]))
                assert name == bare or bare in MANY, "a worker might read it as what it is beside"
                sent = BACKENDS[draw.choice([*BACKENDS])].write(op, CAN)
            except GatewayError as error:
                told(dialect, error, Kind.BAD_REQUEST, Kind.UNSUPPORTED)
                continue
            assert sent.path == PATHS[work]
            written = sent.body
            if bare not in ("model", "stream", *op.dropped, *sent.dropped):
                passed += 1
                assert text.encode() in written, (name, text)
    assert passed


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_a_reply_with_any_value_is_strict_or_an_error(sample: Sample, data: st.DataObject) -> None:
    op, passthrough = sample.op(), DIALECTS[sample.dialect].passthrough["openai"]
    headers, body = sample.answered.headers, sample.answered.body
    try:
        if not sample.streamed:
            reply, _ = passthrough.media_whole(Response(200, headers, drawn(data, body)), op)
            strict(reply.body)
            return
        frames = [frame.data for frame in sse.Reader().feed(body)]
        number = data.draw(st.sampled_from([at for at, frame in enumerate(frames) if frame[:1] == b"{"]))
        frames[number] = drawn(data, frames[number])
        lane = passthrough.media_lane(op, headers)
        assert lane is not None
        out = b"".join(lane.feed(b"data: %b\n\n" % one) for one in frames if lane.error is None and not lane.done)
        if lane.error is None and not lane.done:
            out += lane.eof()
        for document in documents(out):
            strict(document)
        assert lane.done is (lane.error is None)
        assert lane.usage is None or lane.usage.output is None or lane.usage.output >= 0
        if lane.error is not None:
            raise lane.error
    except GatewayError as error:
        told(sample.dialect, error)


@pytest.mark.parametrize("sample", STREAMED, ids=str)
def test_every_kind_of_error_has_its_form(sample: Sample) -> None:
    """As an event behind the first one; it ends no stream as a success."""
    passthrough = DIALECTS[sample.dialect].passthrough["openai"]
    first = sample.answered.body.partition(b"\n\n")[0] + b"\n\n"
    for kind in Kind:
        lane = passthrough.media_lane(sample.op(), sample.answered.headers)
        assert lane is not None
        out = lane.feed(first) + lane.fail(GatewayError(kind, "sentence"))
        assert not lane.done
        assert not lane.clean_end
        *_, last = sse.Reader().feed(out)
        assert json.loads(last.data)["error"]["message"] == "sentence"


def test_every_operation_has_samples() -> None:
    for dialect in SERVING:
        found = {one.work for one in SAMPLES if one.dialect == dialect}
        assert found >= PATHS.keys() - {"speak"}, dialect
    assert {one.work for one in STREAMED} == PATHS.keys() - {"vary"}
