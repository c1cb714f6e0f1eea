"""The simulated worker as an ASGI application, which speaks vLLM's wire."""

from __future__ import annotations

import asyncio
import base64
import random
import struct
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from workers.serving import Message, Receive, Send, answered, received, whole
from workers.simulated import media, tokenizer
from workers.simulated.answers import Reply, Sequences, calling, draw, used
from workers.simulated.engine import Engine, Entry, chain
from workers.simulated.metrics import Metrics
from workers.simulated.options import Options
from workers.simulated.requests import Asked, Refused, StreamOptions, check_context, read

_MOST_BYTES = 256 << 20
Handler = Callable[[Asked, Send], Awaitable[None]]


class Simulated:
    """One worker, made in the event loop that serves it.

    routes: the answer to each method and path. Callers may add others, or replace these.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._loop = asyncio.get_running_loop()
        self.engine = Engine(options, self._loop)
        self.metrics = Metrics()
        self._ready_at = self._loop.time() + options.loading_s
        self.routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): self.generate,
            ("POST", "/v1/completions"): self.generate,
            ("POST", "/v1/embeddings"): self.embed,
            ("POST", "/tokenize"): self.tokenize,
            ("GET", "/v1/models"): self.models,
            ("GET", "/version"): self.version,
            ("GET", "/health"): self.health,
            ("GET", "/metrics"): self.figures,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            body = await received(receive, _MOST_BYTES)
        except ConnectionError:
            return
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        await answered(receive, self._answer(scope["method"], scope["path"], kind, body, send))

    async def _answer(self, method: str, path: str, kind: bytes, body: bytes, send: Send) -> None:
        try:
            if method == "POST" and path in media.PATHS and self.options.media:
                self._loaded()
                await media.answer(path, kind, body, self.options, send)
                return
            handler = self.routes.get((method, path))
            if handler is None:
                raise Refused(404, "Not Found", "Not Found")
            await handler(read(body or b"{}"), send)
        except Refused as refused:
            await whole(send, refused.status, refused.body(), b"application/json")

    def _loaded(self) -> None:
        if self._loop.time() < self._ready_at:
            raise Refused(503, "ServiceUnavailableError", "The model is still loading.")

    def _model(self, asked: Asked) -> str:
        """The name that the reply carries. Raises Refused for a model that is not served."""
        self._loaded()
        if asked.model and asked.model not in self.options.models:  # vLLM takes no model at all, too
            raise Refused(404, "NotFoundError", f"The model `{asked.model}` does not exist.", "model")
        return self.options.models[0]

    async def generate(self, asked: Asked, send: Send) -> None:
        """POST /v1/chat/completions, /v1/completions."""
        options, model, chat = self.options, self._model(asked), asked.messages is not None
        limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        if limit is None and not chat:
            limit = 16
        entry = Entry(time.monotonic())
        choices = []
        for text, count in asked.prompts():
            room = check_context(count, limit, options.max_model_len)
            entry.prompt_tokens += count
            entry.cached_tokens += self.engine.cached(chain(text, asked.cache_salt or ""), count)
            called = asked.call() if chat else None
            drawn = (calling(*called, room) if called else None for _ in range(asked.n or 1))
            choices += [one or draw(text, asked, index, room, options.output_tokens) for index, one in enumerate(drawn)]
        read, made = entry.prompt_tokens, sum(choice.tokens for choice in choices)
        usage = used(read, made)["usage"]
        if options.token_details:
            usage["prompt_tokens_details"] = {"cached_tokens": entry.cached_tokens}
        await self._send(Sequences(self.engine, choices, entry), Reply(chat, model, choices, usage), asked, send)

    async def _send(self, job: Sequences, reply: Reply, asked: Asked, send: Send) -> None:
        longest = max(choice.tokens for choice in reply.choices)
        finishes = ["abort"] * len(reply.choices)
        wanted = asked.stream_options or StreamOptions()
        running = bool(wanted.include_usage and wanted.continuous_usage_stats)
        try:
            async for at in job.tokens(longest):
                if asked.stream and not at:
                    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                if asked.stream:
                    await send({"type": "http.response.body", "body": reply.chunk(at, running), "more_body": True})
            if asked.stream:
                await send({"type": "http.response.body", "body": reply.end(bool(wanted.include_usage))})
            else:
                await whole(send, 200, reply.whole(), b"application/json")
            finishes = [choice.finish for choice in reply.choices]
        finally:
            self.engine.release(job)
            self.metrics.finish(job.entry, job.scheduled, job.admitted, finishes)

    async def embed(self, asked: Asked, send: Send) -> None:
        """POST /v1/embeddings: vectors that depend on the text only."""
        model, most = self._model(asked), self.options.embedding_dims
        size = asked.dimensions or most
        if not 0 < size <= most:
            raise Refused(400, "BadRequestError", f"Dimensions must be from 1 to {most}", "dimensions")
        rows: list[dict[str, Any]] = []
        prompts = asked.prompts()
        for index, (text, _) in enumerate(prompts):
            drawn = random.Random(zlib.crc32(text.encode("utf-8", "surrogatepass")))
            vector: Any = [drawn.uniform(-1, 1) / size for _ in range(size)]
            if asked.encoding_format == "base64":
                vector = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
            rows.append({"index": index, "object": "embedding", "embedding": vector})
        tokens = sum(count for _, count in prompts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        await _json(send, {"object": "list", "model": model, "data": rows, "usage": usage})

    async def tokenize(self, asked: Asked, send: Send) -> None:
        pieces = tokenizer.split(asked.prompts()[0][0])
        tokens = [zlib.crc32(piece.encode()) >> 1 for piece in pieces]
        strs = pieces if asked.return_token_strs else None
        counts = {"count": len(tokens), "max_model_len": self.options.max_model_len}
        await _json(send, {**counts, "tokens": tokens, "token_strs": strs})

    async def models(self, asked: Asked, send: Send) -> None:
        shared = {"object": "model", "owned_by": "vllm", "max_model_len": self.options.max_model_len}
        await _json(send, {"object": "list", "data": [{"id": name, **shared} for name in self.options.models]})

    async def version(self, asked: Asked, send: Send) -> None:
        await _json(send, {"version": "0.33.0"})

    async def health(self, asked: Asked, send: Send) -> None:
        self._loaded()
        await whole(send, 200, b"")

    async def figures(self, asked: Asked, send: Send) -> None:
        await whole(send, 200, self.metrics.render(self.engine).encode(), b"text/plain; version=0.0.4; charset=utf-8")

    async def load(self) -> tuple[int, int]:
        """How many sequences run, and how many requests wait."""
        return self.engine.running, len(self.engine.queue)


async def _json(send: Send, body: Any) -> None:
    await whole(send, 200, msgspec.json.encode(body), b"application/json")
