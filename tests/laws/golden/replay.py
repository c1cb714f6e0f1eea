"""Transcripts played through the whole application in memory: the real router, pipeline, lanes and pool, a scripted
transport below and a plain ASGI client above."""

from __future__ import annotations

import asyncio
import io
import re
from typing import Any

import yaml
from msgspec import Struct

from gateway.app import Gateway
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import RequestRecord
from gateway.observe.log import Log
from tests.laws.golden.transcript import Message, Transcript, write_message
from tests.support.harness import load_text
from tests.unit.transport.scripted import Answer, Scripted

# Turns of the loop that the gateway needs at most to pass a block on.
_TURNS = 5
# As gateway.transport words them.
_ENDINGS = {
    "cut": GatewayError(Kind.TRUNCATED, "the worker closed the connection before its answer was complete"),
    "timeout": GatewayError(Kind.TIMEOUT, "the worker fell silent in the middle of its answer", retryable=False),
}
_NEVER_BEGUN = {
    "cut": GatewayError(Kind.UPSTREAM, "the worker closed the connection before answering"),
    "timeout": GatewayError(Kind.TIMEOUT, "the worker did not begin to answer in time", retryable=False),
    "refused": GatewayError(Kind.UPSTREAM, "the worker refused the connection"),
}


class Played(Struct):
    """What became of one request. sent is what the worker got, None when none was asked."""

    sent: Request | None
    got: Message
    record: RequestRecord

    def made(self) -> dict[str, str]:
        """The sections of a transcript that the gateway makes."""
        made = {"client <": write_message(self.got), "usage": _bill(self.record)}
        if self.sent is not None:
            request = Message(f"{self.sent.method} {self.sent.path}", self.sent.headers, self.sent.body)
            made["worker >"] = write_message(request)
        return made


def _bill(record: RequestRecord) -> str:
    lines = ["none"]
    if record.usage is not None:
        counts = {name: getattr(record.usage, name) for name in ("input", "output", "cached", "reasoning")}
        words = [f"{name} {'unknown' if count is None else count}" for name, count in counts.items()]
        lines = [", ".join(words) + f" ({record.usage.source})"]
    return "\n".join([*lines, f"outcome {record.outcome}" + (f", {record.code}" if record.code else "")])


class _Records:
    """Keeps what the log would have been told."""

    def __init__(self) -> None:
        self.last: RequestRecord | None = None

    def begun(self, dialect: str) -> None:
        self.last = None

    def finished(self, record: RequestRecord) -> None:
        self.last = record

    def tool_called(self, kind: str, error: str | None) -> None:
        raise AssertionError("no model of the transcripts calls tools of the gateway")

    def guarded(self, guard: str, stage: str, result: str, seconds: float) -> None:
        raise AssertionError("no model of the transcripts has guards")

    def hedged(self, model: str, won: bool) -> None:
        raise AssertionError("no model of the transcripts asks second workers")

    def retried(self, model: str, worker: str, error: GatewayError) -> None:
        """There is one worker only: no other is asked."""

    def answered_with(self, record: RequestRecord, worker: str, error: GatewayError) -> None: ...
    def moved(self, model: str, reason: str) -> None:
        raise AssertionError("the one worker stalls in no transcript")

    def continued(self, model: str, worker: str, reason: str) -> None:
        raise AssertionError("no stream of a transcript is continued")

    def not_continued(self, model: str, reason: str) -> None:
        raise AssertionError("nor should one be")

    def misses(self, record: RequestRecord, flags: tuple[str, ...]) -> None: ...
    def prefilled(self, model: str, worker: str | None, error: GatewayError | None) -> None:
        """The one worker computes its prompts."""

    def bug(self, record: RequestRecord, error: BaseException) -> None:
        raise error


class Stage:
    """Plays transcripts, one after another, on a loop of its own. A context manager."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._log = Log("error", False, io.BytesIO())
        self._gateways: dict[str, Gateway] = {}

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for gateway in self._gateways.values():
            self._runner.run(gateway.close())
        self._runner.close()
        self._log.close()

    def play(self, transcript: Transcript, answered: Message | None = None, size: int | None = None) -> Played:
        """One request. `answered` instead of the transcript's own answer; in blocks of `size` bytes, else of frames."""
        return self._runner.run(self._play(transcript, answered or transcript.answered, size))

    def _gateway(self, options: dict[str, Any]) -> Gateway:
        usual = {"backend": "vllm", "upstream_model": "sim", "workers": ["http://worker:8000"], "aliases": ["alias"]}
        options = {"continue_streams": False, **options}  # transcripts show each stream as its one worker leaves it
        text = yaml.safe_dump({"models": {"m": {**usual, **options}}})
        known = self._gateways.get(text)
        if known is not None and any(worker.lacking for worker in known.deployment.workers.values()):
            self._gateways[f"{len(self._gateways)} {text}"] = self._gateways.pop(
                text
            )  # it has learnt from a transcript
        if text not in self._gateways:
            self._gateways[text] = Gateway(load_text(text), self._log)
        return self._gateways[text]

    async def _play(self, transcript: Transcript, answer: Message | None, size: int | None) -> Played:
        gateway = self._gateway(transcript.model)
        runtime = gateway.deployment.runtime
        for worker in gateway.deployment.workers.values():
            worker.ready = True
            worker.breaker.succeed(0.0, worker.generation)
        for served in runtime.models.values():
            served.created = 1763726400
        act: Answer | GatewayError | None = None
        if answer is not None:
            began = bool(answer.first)
            act = Answer(int(answer.first), answer.headers, live=True) if began else _NEVER_BEGUN[answer.ending]
        transport = runtime.models["m"].transport = Scripted(*([act] if act is not None else []))
        records = runtime.observer = _Records()
        calling = asyncio.create_task(_call(gateway, transcript.asked))
        if answer is not None and answer.first:
            await _answer(transport, answer, size, calling)
        got = await calling
        assert records.last is not None
        sent = transport.requests[0] if transport.requests else None
        assert (sent is None) == (answer is None), "the worker was asked, or was not, against the transcript"
        return Played(sent, got, records.last)


async def _answer(transport: Scripted, answer: Message, size: int | None, calling: asyncio.Task[Message]) -> None:
    """Each block reaches the gateway when it is done with the one before, as on a slow line."""
    asked = asyncio.create_task(transport.sent(1))
    await asyncio.wait([asked, calling], return_when=asyncio.FIRST_COMPLETED)
    if not asked.done():
        asked.cancel()
        return
    play = asked.result()
    for block in _blocks(answer.body, size):
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        play.push(block)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    if not play.dropped:
        error = _ENDINGS.get(answer.ending)
        if error is None:
            play.end()
        else:
            play.fail(error)


def _blocks(body: bytes, size: int | None) -> list[bytes]:
    if size is None:
        return [block for block in re.split(rb"(?<=\n\n)", body) if block]
    return [body[at : at + size] for at in range(0, len(body), size)]


async def _call(app: Gateway, asked: Message) -> Message:
    method, _, target = asked.first.partition(" ")
    path, _, query = target.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": asked.headers,
    }
    body = [{"type": "http.request", "body": asked.body, "more_body": False}]
    stays = asyncio.Event()
    got = Message("", [], b"", "cut")

    async def receive() -> dict[str, Any]:
        if not body:
            await stays.wait()
        return body.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            got.first = str(message["status"])
            got.headers = list(message["headers"])
        else:
            got.body += message["body"]
            if not message.get("more_body", False):
                got.ending = ""

    await app(scope, receive, send)
    return got
