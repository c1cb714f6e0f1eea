"""Workers as bytes: each wire that a backend speaks, written from a scenario's events.

Another wire is another entry in `WORKERS`; a test fails while one is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from gateway.core.events import Delta, Event, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import Response
from gateway.core.lifecycle import ReplyChoice
from tests.laws.conformance.scenarios import START, USAGE, Framing, Operation, Scenario

JSON = [(b"content-type", b"application/json")]


class Worker(Protocol):
    """lacks: what this wire has no word for (`Scenario.needs` or a scenario's name), and why. mark: whether a frame of
    its own ends a stream, and not the last that says something. adapt: a scenario as this wire can tell it."""

    lacks: Mapping[str, str]
    mark: bool

    def adapt(self, scenario: Scenario) -> Scenario: ...
    def frames(self, scenario: Scenario) -> list[bytes]:
        """The streamed reply, cut behind each frame, the terminal mark included."""

    def whole(self, scenario: Scenario) -> Response: ...
    def broken(self, message: str) -> bytes:
        """A frame that says, in the middle of a stream, that the worker failed with status 500."""

    def fault(self, status: int, message: str) -> Response: ...


def sse(data: bytes, framing: Framing = "lf") -> bytes:
    """One event, in one of the ways that the standard allows. `data` is JSON, or a word."""
    if framing == "crlf":
        return b"data: " + data + b"\r\n\r\n"
    if framing == "cr":
        return b"data: " + data + b"\r\r"
    if framing == "no space":
        return b"data:" + data + b"\n\n"
    if framing == "comments":
        return b": ping\n\nid: 1\nretry: 5\n:\ndata: " + data + b"\n: data: no\n\n"
    if framing == "blank lines":
        return b"\n\n\ndata: " + data + b"\n\n\n"
    if framing == "lines" and data.startswith(b"{"):
        lines = json.dumps(json.loads(data), indent=1, ensure_ascii=False).split("\n")
        return b"".join(b"data: " + line.encode() + b"\n" for line in lines) + b"\n"
    return b"data: " + data + b"\n\n"


class OpenAIWorker:
    """As vLLM 0.33 writes it."""

    lacks: Mapping[str, str] = {}
    mark = True

    def adapt(self, scenario: Scenario) -> Scenario:
        return scenario

    def frames(self, scenario: Scenario) -> list[bytes]:
        chunks = _Chunks(scenario)
        for event in (START, *scenario.events):
            chunks.see(event)
        if scenario.usage == "last":
            chunks.made[-1]["usage"] = _usage()
        elif scenario.usage == "alone":
            chunks.made.append({**chunks.head, "choices": [], "usage": _usage()})
        frames = [sse(msgspec.json.encode(chunk), scenario.framing) for chunk in chunks.made]
        frames.append(sse(b"[DONE]", scenario.framing))
        if scenario.framing == "bom":
            frames[0] = b"\xef\xbb\xbf" + frames[0]
        return frames

    def whole(self, scenario: Scenario) -> Response:
        chat = scenario.operation == "chat"
        reply = scenario.reply()
        body = {
            **_head(scenario.operation, streamed=False),
            "choices": [(_chat_choice if chat else _text_choice)(choice) for choice in reply.choices],
            "usage": _usage() if reply.usage is not None else None,
        }
        return Response(200, JSON, msgspec.json.encode(body))

    def broken(self, message: str) -> bytes:
        return sse(msgspec.json.encode(_error(500, message)))

    def fault(self, status: int, message: str) -> Response:
        return Response(status, JSON, msgspec.json.encode(_error(status, message)))


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}


def _usage() -> dict[str, Any]:
    counts = {"prompt_tokens": USAGE.input, "completion_tokens": USAGE.output, "total_tokens": USAGE.total}
    return {**counts, "prompt_tokens_details": None}


def _head(operation: Operation, *, streamed: bool) -> dict[str, Any]:
    kind = "text_completion" if operation == "complete" else "chat.completion" + (".chunk" if streamed else "")
    prefix = "cmpl" if operation == "complete" else "chatcmpl"
    return {"id": f"{prefix}-1", "object": kind, "created": START.created, "model": START.model}


class _Chunks:
    """One chunk for each event that has something to say."""

    def __init__(self, scenario: Scenario) -> None:
        self.chat = scenario.operation == "chat"
        self.head = _head(scenario.operation, streamed=True)
        self.made: list[dict[str, Any]] = []
        self.choices = {event.choice for event in scenario.events if isinstance(event, Finish)}
        self.kinds: dict[tuple[int, int], str] = {}
        self.tools: dict[tuple[int, int], int] = {}
        self.offset = 0
        self.together = False
        self.quirk = scenario.quirk

    def see(self, event: Event) -> None:
        if isinstance(event, Start):
            for choice in sorted(self.choices) if self.chat and self.quirk != "no role" else ():
                self.put(choice, delta={"role": "assistant", "content": ""})
        elif isinstance(event, PartStart):
            self.kinds[event.choice, event.index] = event.kind
            if event.kind == "tool":
                number = sum(choice == event.choice for choice, _ in self.tools)
                self.tools[event.choice, event.index] = number
                function = {"name": event.name, "arguments": ""}
                call = {"id": event.call_id, "type": "function", "index": number, "function": function}
                self.put(event.choice, delta={"tool_calls": [call]})
        elif isinstance(event, Delta):
            self.delta(event)
        elif isinstance(event, Finish):
            self.finish(event)
        else:
            assert isinstance(event, (PartEnd, UsageReport))

    def put(self, choice: int, *, logprobs: Any = None, **content: Any) -> None:
        if self.quirk == "a role in every chunk":
            content["delta"] = {"role": "assistant", **content["delta"]}
        body = {"index": choice, **content, "logprobs": logprobs, "finish_reason": None}
        self.made.append({**self.head, "choices": [body]})

    def delta(self, event: Delta) -> None:
        tokens = msgspec.json.decode(event.logprobs) if event.logprobs is not None else None
        if not self.chat:
            logprobs = _text_logprobs(tokens, self.offset) if tokens else None
            self.offset += len(event.text)
            self.put(event.choice, text=event.text, token_ids=event.tokens or None, logprobs=logprobs)
            self.together = event.last
            return
        key = event.choice, event.index
        kind = self.kinds[key]
        if kind == "tool":
            call = {"index": self.tools[key], "function": {"arguments": event.text}}
            self.put(event.choice, delta={"tool_calls": [call]})
        else:
            name = {"text": "content", "thinking": self.quirk or "reasoning"}.get(kind, kind)
            logprobs = {"content": tokens} if tokens else None
            self.put(event.choice, delta={name: event.text}, token_ids=event.tokens or None, logprobs=logprobs)
        self.together = event.last

    def finish(self, event: Finish) -> None:
        last = self.made[-1]["choices"][0] if self.made else {}
        deltas = last.get("delta", {}).get("content") or last.get("text")
        if not (self.together and deltas and last["index"] == event.choice):
            content: dict[str, Any] = {"delta": {"content": ""}} if self.chat else {"text": ""}
            self.put(event.choice, **content)
            last = self.made[-1]["choices"][0]
        last["token_ids"] = _with_end(last.get("token_ids") or (), event.raw, event.stop_sequence)
        last["finish_reason"] = event.raw
        last["stop_reason"] = event.stop_sequence


def _with_end(tokens: tuple[int, ...], reason: str, stop: str | int | None) -> list[int]:
    """vLLM also lists the id of the model's own end."""
    return [*tokens, 2] if reason == "stop" and not isinstance(stop, str) else list(tokens)


def _chat_choice(choice: ReplyChoice) -> dict[str, Any]:
    tokens = [token for raw in choice.logprobs for token in msgspec.json.decode(raw)]
    message = {
        "role": "assistant",
        "content": choice.text(),
        "refusal": choice.text("refusal"),
        "reasoning": choice.text("thinking"),
        "tool_calls": [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in choice.calls
        ],
    }
    logprobs = {"content": tokens} if tokens else None
    return {
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": choice.raw_reason,
        "stop_reason": choice.stop_sequence,
        "token_ids": _with_end(choice.tokens, choice.raw_reason, choice.stop_sequence),
    }


def _text_choice(choice: ReplyChoice) -> dict[str, Any]:
    tokens = [token for raw in choice.logprobs for token in msgspec.json.decode(raw)]
    return {
        "index": choice.index,
        "text": choice.text() or "",
        "logprobs": _text_logprobs(tokens, 0) if tokens else None,
        "finish_reason": choice.raw_reason,
        "stop_reason": choice.stop_sequence,
        "token_ids": _with_end(choice.tokens, choice.raw_reason, choice.stop_sequence),
    }


def _text_logprobs(tokens: list[dict[str, Any]], offset: int) -> dict[str, Any]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token["token"])
    return {
        "text_offset": offsets,
        "token_logprobs": [token["logprob"] for token in tokens],
        "tokens": [token["token"] for token in tokens],
        "top_logprobs": [{top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in tokens],
    }


def _renamed(scenario: Scenario, words: Mapping[str, str], stopped: str = "word") -> Scenario:
    """With the wire's own words for why a choice ended, and usage, which it always tells, on the last frame."""
    events = tuple(
        msgspec.structs.replace(event, raw=stopped if event.stop_sequence else words[event.reason])
        if isinstance(event, Finish)
        else event
        for event in scenario.events
    )
    return msgspec.structs.replace(scenario, events=events, usage="last")


class LlamaCppWorker:
    """`/completion` of llama.cpp's server: a choice ends with an event that says `stop`."""

    lacks: Mapping[str, str] = {"chat": "chats go over its OpenAI endpoint", "content filter": "it has none"}
    mark = False

    def adapt(self, scenario: Scenario) -> Scenario:
        return _renamed(scenario, {"stop": "eos", "length": "limit"})

    def frames(self, scenario: Scenario) -> list[bytes]:
        made: list[dict[str, Any]] = []
        first = True
        for event in scenario.events:
            if isinstance(event, Delta):
                probs = msgspec.json.decode(event.logprobs) if event.logprobs is not None else []
                made.append(self._event(event.choice, event.text, list(event.tokens), probs))
            elif isinstance(event, Finish):
                made.append({**self._event(event.choice, "", [], []), **self._end(event, first)})
                first = False
        frames = [sse(msgspec.json.encode(said), scenario.framing) for said in made]
        return [b"\xef\xbb\xbf" * (scenario.framing == "bom") + frames[0], *frames[1:]]

    def whole(self, scenario: Scenario) -> Response:
        made: list[dict[str, Any]] = []
        for choice in scenario.reply().choices:
            probs = [item for raw in choice.logprobs for item in msgspec.json.decode(raw)]
            event = Finish(choice.index, choice.reason, choice.raw_reason, choice.stop_sequence)
            end = self._end(event, not made)
            # Of an end by itself, the last id is the model's own end.
            ids = [*choice.tokens, 2] if choice.raw_reason == "eos" and choice.tokens else list(choice.tokens)
            made.append({**self._event(choice.index, choice.text() or "", ids, probs), **end})
        if scenario.asks.get("n") is None:
            return Response(200, JSON, msgspec.json.encode(made[0]))
        # Whoever ends first has the rest of the tokens: the order of a stream is not that of an array.
        return Response(200, JSON, msgspec.json.encode(made))

    def broken(self, message: str) -> bytes:
        return sse(msgspec.json.encode(_error(500, message)))

    def fault(self, status: int, message: str) -> Response:
        return Response(status, JSON, msgspec.json.encode(_error(status, message)))

    @staticmethod
    def _event(choice: int, text: str, tokens: list[int], probs: list[Any]) -> dict[str, Any]:
        body = {"index": choice, "content": text, "tokens": tokens, "stop": False, "tokens_evaluated": USAGE.input}
        return {**body, **({"completion_probabilities": probs} if probs else {})}

    @staticmethod
    def _end(event: Finish, first: bool) -> dict[str, Any]:
        assert USAGE.output is not None
        end = {"stop": True, "stop_type": event.raw, "stopping_word": event.stop_sequence or ""}
        return {**end, "tokens_predicted": USAGE.output if first else 0, "timings": {}}


class LlamaCppChoices(OpenAIWorker):
    """Chats of llama.cpp's server with several choices: each is counted in a usage chunk of its own, and a whole reply
    is asked for as a stream."""

    def frames(self, scenario: Scenario) -> list[bytes]:
        frames = super().frames(scenario)
        if scenario.usage == "alone":
            # The prompt is counted again; so that the sum is that of the scenario, this choice said nothing.
            again = {**_usage(), "completion_tokens": 0}
            head = _head(scenario.operation, streamed=True)
            frames.insert(-1, sse(msgspec.json.encode({**head, "choices": [], "usage": again}), scenario.framing))
        return frames

    def whole(self, scenario: Scenario) -> Response:
        return Response(200, JSON, b"".join(self.frames(scenario)))


class LlamaCppStops(OpenAIWorker):
    """Chats of llama.cpp's server with stop phrases: the one that was met stands beside the choices, not in one."""

    def frames(self, scenario: Scenario) -> list[bytes]:
        return [_told_beside(frame) for frame in super().frames(scenario)]

    def whole(self, scenario: Scenario) -> Response:
        plain = super().whole(scenario)
        return Response(200, JSON, _told_beside(plain.body))


def _told_beside(text: bytes) -> bytes:
    """A whole reply, or a frame of a stream, with the phrase where llama.cpp writes it."""
    start, end = text.find(b"{"), text.rfind(b"}") + 1
    if b'"stop_reason"' not in text and b'"token_ids"' not in text:
        return text
    reply = json.loads(text[start:end])
    said = [choice.pop("stop_reason", None) or "" for choice in reply["choices"]]
    for choice in reply["choices"]:
        choice.pop("token_ids", None)  # its chats tell none
    if any(said):
        reply["__verbose"] = {"stopping_word": said[0]}
    return text[:start] + msgspec.json.encode(reply) + text[end:]


class TgiWorker:
    """text-generation-inference 3.3: `/generate_stream` for texts; its chats resemble OpenAI's."""

    lacks: Mapping[str, str] = {
        "n": "it makes one choice",
        "thinking": "it has no reasoning parser",
        "refusal": "it never refuses in a field of its own",
        "content filter": "it has none",
        "no text": "each of its events is a token",
        "text in one chunk": "as `text ended by its last chunk`",
        "logprobs": "its tokens are those of the text: tests/unit/backends/tgi",
    }
    mark = False

    def adapt(self, scenario: Scenario) -> Scenario:
        events = tuple(
            msgspec.structs.replace(event, raw="stop_sequence")
            if isinstance(event, Finish) and event.stop_sequence
            else event
            for event in scenario.events
        )
        if scenario.operation == "chat":
            return msgspec.structs.replace(scenario, events=events)
        words = {"stop": "eos_token", "length": "length"}
        return _renamed(msgspec.structs.replace(scenario, events=events), words, "stop_sequence")

    @staticmethod
    def _unmended(scenario: Scenario) -> Scenario:
        """It leaves the stop sequence at the end of the text, and names it nowhere."""
        events: list[Event] = []
        for event in scenario.events:
            if isinstance(event, Finish) and event.stop_sequence:
                # Before the end of the part, in two tokens.
                stop = str(event.stop_sequence)
                events[-1:-1] = [
                    Delta(event.choice, 0, text, (90 + place,)) for place, text in enumerate((stop[:1], stop[1:]))
                ]
                event = msgspec.structs.replace(event, stop_sequence=None)
            events.append(event)
        return msgspec.structs.replace(scenario, events=tuple(events))

    def frames(self, scenario: Scenario) -> list[bytes]:
        scenario = self._unmended(scenario)
        if scenario.operation == "chat":
            return OpenAIWorker().frames(scenario)
        made: list[dict[str, Any]] = [
            {"index": place, "token": _token(event.tokens[0], event.text), "generated_text": None, "details": None}
            for place, event in enumerate(event for event in scenario.events if isinstance(event, Delta))
        ]
        choice = scenario.reply().choices[0]
        if choice.raw_reason == "eos_token":
            end = {**_token(2, "</s>"), "special": True}
            made.append({"index": len(made), "token": end, "generated_text": None, "details": None})
        made[-1]["generated_text"] = choice.text()
        made[-1]["details"] = self._details(choice.raw_reason)
        frames = [sse(msgspec.json.encode(said), scenario.framing) for said in made]
        return [b"\xef\xbb\xbf" * (scenario.framing == "bom") + frames[0], *frames[1:]]

    def whole(self, scenario: Scenario) -> Response:
        scenario = self._unmended(scenario)
        if scenario.operation == "chat":
            return OpenAIWorker().whole(scenario)
        choice = scenario.reply().choices[0]
        said = [event for event in scenario.events if isinstance(event, Delta)]
        tokens = [_token(event.tokens[0], event.text) for event in said]
        if choice.raw_reason == "eos_token":
            tokens.append({**_token(2, "</s>"), "special": True})
        details = {**self._details(choice.raw_reason), "prefill": [], "tokens": tokens}
        return Response(200, JSON, msgspec.json.encode({"generated_text": choice.text(), "details": details}))

    def broken(self, message: str) -> bytes:
        return sse(msgspec.json.encode({"error": message, "error_type": "generation"}))

    def fault(self, status: int, message: str) -> Response:
        kind = {422: "validation", 424: "generation", 429: "overloaded"}.get(status, "unknown")
        return Response(status, JSON, msgspec.json.encode({"error": message, "error_type": kind}))

    @staticmethod
    def _details(reason: str) -> dict[str, Any]:
        counts = {"generated_tokens": USAGE.output, "input_length": USAGE.input}
        return {"finish_reason": reason, **counts, "seed": None}


def _token(number: int, text: str) -> dict[str, Any]:
    return {"id": number, "text": text, "logprob": -0.25, "special": False}


WORKERS: Mapping[str, Worker] = {
    "openai": OpenAIWorker(),
    "llamacpp": LlamaCppWorker(),
    "llamacpp chat": LlamaCppChoices(),
    "llamacpp stop": LlamaCppStops(),
    "tgi": TgiWorker(),
}
