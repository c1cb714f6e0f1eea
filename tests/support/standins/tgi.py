"""A stand-in for text-generation-inference: its endpoints, checks, errors and oddities, without a model.

Source: TGI 3.3 (router/src: lib.rs, validation.rs, server.rs, chat.rs). It says the tokens of its script, whatever is
asked, unless a stop sequence or `max_new_tokens` ends them. The client text-generation 0.7.0 is older than TGI 3 and
cannot read the chunks of its chat streams: `chat_chunks="old"` writes those that it can.

    with Tgi(tokens=["a", " b"]) as worker:
        worker.url, worker.seen[0].body
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.standins.serving import Answering, serving

TYPES = {"generation": 424, "overloaded": 429, "validation": 422, "incomplete_generation": 500, "tool_error": 422}
WORDS = {
    "generation": "Request failed during generation: CANCELLED",
    "overloaded": "Model is overloaded",
    "validation": "Input validation error: ",
    "incomplete_generation": "Incomplete generation",
    "tool_error": "Tool error: ",
}
CREATED = 1763726400
PROMPT_TOKENS = 4
EOS = {"id": 2, "text": "</s>", "logprob": -0.5, "special": True}


@dataclass(frozen=True)
class Seen:
    path: str
    headers: Mapping[str, str]
    body: Any


class Refused(Exception):
    """An error of TGI's own kind."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(WORDS[kind] + message)
        self.kind = kind

    @property
    def body(self) -> dict[str, str]:
        return {"error": str(self), "error_type": self.kind}


class Malformed(Exception):
    """What cannot be read into its structs: a 422 of plain text."""


class Tgi:
    """tokens   what it says
    call     the arguments of the first tool offered, said instead where tools are offered
    fail     an `error_type` it answers with, `after` that many tokens
    cut      the connection breaks there instead
    gate     waited for before a stream fails or is cut
    """

    def __init__(
        self,
        tokens: Sequence[str] = ("Hello", ",", " world"),
        call: Mapping[str, Any] | None = None,
        fail: str | None = None,
        after: int = 0,
        cut: bool = False,
        chat_chunks: Literal["new", "old"] = "new",
        gate: threading.Event | None = None,
    ) -> None:
        self.tokens = tokens
        self.call = call
        self.fail = fail
        self.after = after
        self.cut = cut
        self.chat_chunks = chat_chunks
        self.gate = gate
        self.seen: list[Seen] = []
        owner = self

        class Handler(_Handler):
            tgi = owner

        self.url = ""
        self._serving = serving(Handler)

    def __enter__(self) -> Tgi:
        self.url = self._serving.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._serving.__exit__(*raised)


class _Handler(Answering):
    protocol_version = "HTTP/1.1"
    tgi: Tgi

    def do_GET(self) -> None:
        self._respond(200 if self.path in ("/health", "/info") else 404, b"{}")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        body = json.loads(raw)
        self.tgi.seen.append(Seen(self.path, dict(self.headers), body))
        try:
            self._serve(body)
        except Malformed as error:
            self._respond(422, f"Failed to deserialize the JSON body into the target type: {error}".encode(), "text")
        except Refused as error:
            self._respond(TYPES[error.kind], json.dumps(error.body).encode())

    def _serve(self, body: Any) -> None:
        chat = self.path == "/v1/chat/completions"
        if self.path == "/tokenize":
            from_generate(body)
            ids = [{"id": number, "text": "", "start": 0, "stop": 0} for number in range(PROMPT_TOKENS)]
            self._respond(200, json.dumps(ids).encode())
            return
        if not chat and self.path not in ("/", "/generate", "/generate_stream"):
            self._respond(404, b"")
            return
        asked = from_chat(body) if chat else from_generate(body)
        stream = body.get("stream", False) if chat or self.path == "/" else self.path == "/generate_stream"
        if stream:
            self._stream(chat, asked, body)
            return
        check(asked, stream=False)
        if self.tgi.fail is not None:
            raise Refused(self.tgi.fail)
        generation = Generation(self.tgi, asked)
        tokens = list(generation.tokens())
        if self.tgi.cut:
            self.close_connection = True
            return
        answer: Any = generation.chat(body, tokens) if chat else generation.whole(tokens)
        headers = {"x-prompt-tokens": str(PROMPT_TOKENS), "x-generated-tokens": str(len(tokens))}
        self._respond(200, json.dumps([answer] if self.path == "/" else answer).encode(), headers=headers)

    def _stream(self, chat: bool, asked: dict[str, Any], body: Any) -> None:
        """Every error is an event of a 200 here, those of its checks too."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            check(asked, stream=True)
            generation = Generation(self.tgi, asked)
            for number, token in enumerate(generation.tokens()):
                if number == self.tgi.after and self.tgi.gate is not None:
                    self.tgi.gate.wait(60)
                if number == self.tgi.after and self.tgi.cut:
                    self.close_connection = True
                    return
                if number == self.tgi.after and self.tgi.fail is not None:
                    raise Refused(self.tgi.fail)
                for event in generation.chunks(body, token) if chat else (generation.event(number, token),):
                    self._event(event)
        except Refused as error:
            # Its chat streams say 422 of every error.
            late = {"error": {"message": str(error), "http_status_code": 422}}
            self._event(late if chat else error.body)
        if chat and self.tgi.chat_chunks == "new":
            self._chunk(b"data:[DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: Mapping[str, Any]) -> None:
        self._chunk(b"data:" + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _respond(
        self, status: int, body: bytes, kind: str = "application/json", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("content-type", kind if "/" in kind else "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


# -- requests -------------------------------------------------------------------------------------------------------


def from_generate(body: Any) -> dict[str, Any]:
    if not isinstance(body.get("inputs"), str):
        raise Malformed("missing field `inputs`")
    # Without `parameters` it samples, with them it does not unless told to.
    return {"inputs": body["inputs"], **body.get("parameters", {"do_sample": True})}


def from_chat(body: Any) -> dict[str, Any]:
    """As ChatRequest::try_into_generate does it."""
    texts = []
    for message in body["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                if part["type"] not in ("text", "image_url"):
                    raise Malformed("unknown variant")
        elif not isinstance(content, str) and not isinstance(message.get("tool_calls"), list):
            raise Malformed("data did not match any variant of untagged enum MessageBody")
        for call in message.get("tool_calls") or ():
            if not isinstance(call["id"], str):
                raise Malformed("invalid type")
        texts.append(str(content))
    for tool in body.get("tools") or ():
        if "parameters" not in tool["function"]:
            raise Malformed("missing field `arguments`")
    form = body.get("response_format")
    if form is not None and "value" not in form:
        raise Malformed("missing field `value`")
    if form is not None and body.get("tools"):
        raise Refused("tool_error", "Grammar and tools are mutually exclusive")
    greedy = body.get("temperature") == 0.0
    penalty = body.get("presence_penalty")
    asked: dict[str, Any] = {
        "inputs": "\n".join(texts),
        "do_sample": not greedy,
        "temperature": None if greedy else body.get("temperature"),
        "repetition_penalty": penalty + 2.0 if penalty is not None else None,
        "max_new_tokens": body.get("max_tokens", body.get("max_completion_tokens")),
        "top_n_tokens": body.get("top_logprobs"),
        "grammar": form,
        "details": True,
    }
    for name in ("frequency_penalty", "top_p", "seed", "stop"):
        asked[name] = body.get(name)
    return asked


def check(asked: Mapping[str, Any], *, stream: bool) -> None:
    """As Validation::validate does it, in its order and words."""

    def given(name: str) -> Any:
        return asked.get(name)

    if stream and (given("best_of") or 1) > 1:
        raise Refused("validation", "`best_of` != 1 is not supported when streaming tokens")
    if given("temperature") is not None and given("temperature") <= 0:
        raise Refused("validation", "`temperature` must be strictly positive")
    if given("repetition_penalty") is not None and given("repetition_penalty") <= 0:
        raise Refused("validation", "`repetition_penalty` must be strictly positive")
    if not -2 <= (given("frequency_penalty") or 0) <= 2:
        raise Refused("validation", "`frequency_penalty` must be >= -2.0 and <= 2.0")
    for name in ("top_p", "typical_p"):
        if given(name) is not None and not 0 < given(name) < 1:
            raise Refused("validation", f"`{name}` must be > 0.0 and < 1.0")
    if given("top_k") is not None and given("top_k") <= 0:
        raise Refused("validation", "`top_k` must be strictly positive")
    if given("max_new_tokens") == 0:
        raise Refused("validation", "`max_new_tokens` must be strictly positive")
    if len(given("stop") or ()) > 4:
        raise Refused("validation", f"`stop` supports up to 4 stop sequences. Given: {len(given('stop'))}")
    if given("seed") is not None and given("seed") < 0:
        raise Malformed("invalid value: integer, expected u64")
    if (given("top_n_tokens") or 0) > 5:
        raise Refused("validation", f"`top_n_tokens` must be >= 0 and <= 5. Given: {given('top_n_tokens')}")
    if not given("inputs"):
        raise Refused("validation", "`inputs` cannot be empty")
    new = given("max_new_tokens") or 20
    if PROMPT_TOKENS + new > 4096:
        raise Refused(
            "validation",
            f"`inputs` tokens + `max_new_tokens` must be <= 4096. Given: {PROMPT_TOKENS} `inputs` tokens and {new}"
            " `max_new_tokens`",
        )
    grammar = given("grammar")
    if grammar is not None and grammar["type"] == "json" and "properties" not in grammar["value"]:
        raise Refused("validation", "grammar is not valid: Grammar must have a 'properties' field")


# -- replies --------------------------------------------------------------------------------------------------------


class Generation:
    """One reply under way."""

    def __init__(self, tgi: Tgi, asked: Mapping[str, Any]) -> None:
        self.tgi = tgi
        self.asked = asked
        self.text = ""
        self.finish = ""
        self.seed = asked.get("seed") if asked.get("seed") is not None else 123 if asked.get("do_sample") else None

    def tokens(self) -> Iterator[dict[str, Any]]:
        """Each token; the last one sets `finish`."""
        most = self.asked.get("max_new_tokens") or 20
        for number, text in enumerate(self.tgi.tokens, 1):
            self.text += text
            if number >= most:
                self.finish = "length"
            elif any(self.text.endswith((stop, stop + "\n")) for stop in self.asked.get("stop") or ()):
                self.finish = "stop_sequence"
            yield {"id": 100 + number, "text": text, "logprob": -0.25, "special": False}
            if self.finish:
                return
        self.finish = "eos_token"
        yield EOS

    def top(self, token: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{**token, "special": False}] * (self.asked.get("top_n_tokens") or 0)

    def details(self, count: int) -> dict[str, Any]:
        return {"finish_reason": self.finish, "generated_tokens": count, "seed": self.seed}

    def whole(self, tokens: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.asked.get("details"):
            return {"generated_text": self.text}
        details = {**self.details(len(tokens)), "prefill": [], "tokens": tokens}
        if self.asked.get("top_n_tokens"):
            details["top_tokens"] = [self.top(token) for token in tokens]
        return {"generated_text": self.text, "details": details}

    def event(self, number: int, token: Mapping[str, Any]) -> dict[str, Any]:
        event: dict[str, Any] = {"index": number + 1, "token": token, "generated_text": None, "details": None}
        if self.asked.get("top_n_tokens"):
            event["top_tokens"] = self.top(token)
        if self.finish:
            event["generated_text"] = self.text
            event["details"] = {**self.details(number + 1), "input_length": PROMPT_TOKENS}
        return event

    def reason(self) -> str:
        return "stop" if self.finish == "eos_token" else self.finish

    def _head(self, kind: str) -> dict[str, Any]:
        head = {"object": kind, "id": "", "created": CREATED, "model": "HuggingFaceH4/zephyr"}
        return {**head, "system_fingerprint": "3.3.6-native"}

    def _logprobs(self, body: Any, tokens: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        if not body.get("logprobs"):
            return None
        pick = ("text", "token"), ("logprob", "logprob")
        return {
            "content": [
                {
                    **{new: token[old] for old, new in pick},
                    "top_logprobs": [{new: top[old] for old, new in pick} for top in self.top(token)],
                }
                for token in tokens
            ]
        }

    def chat(self, body: Any, tokens: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tgi.call is not None and body.get("tools"):
            name = body["tools"][0]["function"]["name"]
            function = {"description": None, "name": name, "arguments": json.dumps(self.tgi.call)}
            message = {"role": "assistant", "tool_calls": [{"id": "0", "type": "function", "function": function}]}
        choice = {"index": 0, "message": message, "logprobs": self._logprobs(body, tokens)}
        count = len(tokens)
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": count, "total_tokens": PROMPT_TOKENS + count}
        choices = [{**choice, "finish_reason": self.reason()}]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage}

    def chunks(self, body: Any, token: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of one token; of a call, all when its last token comes."""
        called = self.tgi.call is not None and bool(body.get("tools"))
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if token["special"] else token["text"]}]
        if called:
            deltas = list(self._call(body)) if self.finish else []
        if self.tgi.chat_chunks == "old":
            deltas = [{**delta, "tool_calls": None} for delta in deltas]
        for delta in deltas:
            last = self.finish and delta is deltas[-1]
            choice = {"index": 0, "delta": delta, "logprobs": self._logprobs(body, [token])}
            choice["finish_reason"] = self.reason() if last else None
            yield {**self._head("chat.completion.chunk"), "choices": [choice], "usage": None}
        if self.finish and (body.get("stream_options") or {}).get("include_usage"):
            count = len(self.tgi.tokens)
            usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": count, "total_tokens": PROMPT_TOKENS + count}
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": usage}

    def _call(self, body: Any) -> Iterator[dict[str, Any]]:
        name = body["tools"][0]["function"]["name"]
        for function in ({"name": name, "arguments": ""}, {"name": None, "arguments": json.dumps(self.tgi.call)}):
            call = {"index": 0, "id": "0", "type": "function", "function": function}
            yield {"role": "assistant", "tool_calls": [call]}
        yield {"role": "assistant", "content": ""}
