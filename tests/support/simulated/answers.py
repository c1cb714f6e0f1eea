"""The OpenAI endpoints: a request body becomes plans and an exchange on the engine."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from tests.support.simulated import render, tokenizer
from tests.support.simulated import requests as wire
from tests.support.simulated.engine import Engine, Full, Read, chain
from tests.support.simulated.faults import Defaults, Fault, parse
from tests.support.simulated.http import Connection, Request
from tests.support.simulated.jobs import Exchange, Plain
from tests.support.simulated.kv import Connector
from tests.support.simulated.ledger import Entry, Ledger
from tests.support.simulated.metrics import Metrics
from tests.support.simulated.options import Options
from tests.support.simulated.plan import (
    Plan,
    Step,
    after_script,
    constrained,
    draw,
    resumed,
    round_of,
    said,
    script_of,
    scripted,
    smallest,
    stopped,
)
from tests.support.simulated.requests import Chat, Complete, Generate, Message, Refused, Script
from tests.support.simulated.stream import Streamed


class Worker(Protocol):
    """The worker that answers."""

    options: Options
    engine: Engine
    ledger: Ledger
    metrics: Metrics
    defaults: Defaults
    memo: dict[bytes, Prepared]
    connector: Connector
    adapters: list[str]
    port: int

    def die(self) -> None: ...


def prompt_of(request: Chat) -> str:
    """The chat template: the text that the model reads."""
    parts = []
    begun = begun_of(request)
    for message in request.messages[:-1] if begun else request.messages:
        parts.append(f"<|{message.role}|>{content_of(message)}\n")
        if message.tool_calls:
            parts.append(render.text(message.tool_calls))
    if request.tools:
        parts.insert(0, f"<|tools|>{msgspec.json.encode(request.tools).decode()}\n")
    parts.append("<|assistant|>" + begun)
    return "".join(parts)


def begun_of(request: Chat) -> str:
    """The text with which the reply begins, since the last message is unfinished."""
    return content_of(request.messages[-1]) if request.continue_final_message else ""


def content_of(message: Message) -> str:
    """A message's text; other parts become a placeholder."""
    content = message.content
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(
        str(part.get("text") or "") if part.get("type") in ("text", "input_text") else f"<|{part.get('type')}|>"
        for part in content
        if isinstance(part, dict)
    )


def check_model(worker: Worker, model: str | None) -> str:
    """The name that the reply carries. Raises Refused (404) for a model that is not served; none at all is fine, as in
    vLLM."""
    if model in worker.adapters:
        return model or ""
    if model and model not in worker.options.models:
        raise Refused(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
    return worker.options.models[0]


def salt_of(worker: Worker, asked: Generate) -> str:
    """What keeps the blocks of a prompt apart: its salt, and its adapter."""
    salt = asked.cache_salt or ""
    return f"{salt} {asked.model}" if asked.model in worker.adapters else salt


def read_of(worker: Worker, asked: Generate, tokens: Sequence[int] | str) -> Read | None:
    """What is published of a prompt, if anything is."""
    if worker.engine.publisher is None:
        return None
    ids = tokenizer.encode(tokens) if isinstance(tokens, str) else tokens
    return Read(ids, asked.cache_salt or "", asked.model or "" if asked.model in worker.adapters else "")


def identify(request: Request, kind: str, own: str | None) -> str:
    """The reply's id: X-Request-Id, the body's request_id, or a new one."""
    header = request.header(b"x-request-id")
    return f"{kind}-{header.decode('latin-1') if header else own or f'{random.getrandbits(64):016x}'}"


def fault_of(worker: Worker, request: Request, *named: str | None) -> Fault | None:
    """The request's own fault, or the default one. Raises Refused for a malformed fault."""
    header = request.header(b"x-sim-fault")
    spec = header.decode("latin-1") if header is not None else next(filter(None, named), None)
    if spec is None:
        return worker.defaults.take(request.path)
    try:
        return parse(spec)
    except ValueError as error:
        raise wire.schema(str(error), "sim_fault") from None


class Prepared(Struct):
    """The part of a chat's answer that depends on the body only. Equal bodies share it, which keeps the worker cheap in
    benchmarks."""

    asked: Chat
    tokens: int
    chain: list[int]
    plans: list[Plan]
    ids: list[int] | None
    fault: str | None
    prompt: str = ""
    model: str = ""
    plain: str = ""
    read: Read | None = None


_MEMO_SIZE = 256
_MEMO_BODY = 16 * 1024


def prepare(worker: Worker, body: bytes) -> Prepared:
    """Read and check a chat request and decide what to reply. Raises Refused."""
    if (known := worker.memo.get(body)) is not None:
        return known
    options = worker.options
    asked = wire.decode(wire.chat_decoder, body)
    if not asked.messages:
        raise wire.schema("List should have at least 1 item after validation, not 0", "messages")
    wire.check_chat(asked)
    model = check_model(worker, asked.model)
    prompt = prompt_of(asked)
    tokens = tokenizer.count(prompt)
    limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    room = wire.check_context(tokens, limit, options.max_model_len, options.strict_context)
    user = next((m for m in reversed(asked.messages) if m.role == "user"), None)
    script = script_of(content_of(user) if user else "", asked.sim)
    if script is None and b"rounds" in body:
        offered = {str(tool.get("function", {}).get("name")) for tool in asked.tools or ()}
        messages = asked.messages[:-1] if asked.continue_final_message else asked.messages
        script = round_of([(message.role, content_of(message)) for message in messages], offered)
    plans = [chat_plan(options, asked, prompt, script, index, room) for index in range(asked.n or 1)]
    ids = tokenizer.encode(prompt) if asked.return_token_ids else None
    fault = asked.sim_fault or (script.fault if script else None)
    made = Prepared(
        asked,
        tokens,
        chain(prompt, salt_of(worker, asked)),
        plans,
        ids,
        fault,
        prompt if asked.kv_transfer_params else "",
        model,
        read=read_of(worker, asked, prompt),
    )
    if len(body) <= _MEMO_BODY and sum([plan.length for plan in plans]) <= _MEMO_BODY:
        if len(worker.memo) >= _MEMO_SIZE:
            del worker.memo[next(iter(worker.memo))]
        worker.memo[body] = made
    return made


def chat(worker: Worker, connection: Connection, request: Request, entry: Entry) -> None:
    """POST /v1/chat/completions."""
    options = worker.options
    made = prepare(worker, request.body)
    asked, plans = made.asked, made.plans
    fault = fault_of(worker, request, made.fault)
    limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    entry.kv = worker.connector.role(asked, [made.prompt], limit)
    cached = worker.engine.cached(made.chain, made.tokens, made.read)
    if entry.kv == "decode":
        cached = made.tokens - 1
    ident = entry.id = identify(request, "chatcmpl", asked.request_id)
    meta = render.Meta(
        ident, int(time.time()), made.model, made.tokens, cached, options.token_details, options.reasoning
    )
    forms = fault.forms if fault else frozenset()
    if asked.stream:
        streamed = Streamed(worker, connection, entry, fault)
        streamed.stream = render.ChatStream(asked, meta, plans, forms, made.ids)
        launch(worker, streamed, plans, made.tokens, cached)
        return
    rest = made.plain
    if not rest or forms or options.token_details or entry.kv:
        kv = None
        if entry.kv == "prefill":
            kv = worker.connector.places(ident, made.prompt, made.tokens, worker.port)
        rest = render.chat_plain(asked, meta, plans, forms, made.ids, kv)
        if not forms and kv is None:
            made.plain = rest
    plain = Plain(worker, connection, entry, fault)
    plain.tells = request.header(b"endpoint-load-metrics-format") or b""
    plain.body = render.begun(meta, "chat.completion", rest)
    launch(worker, plain, plans, made.tokens, cached)


def chat_plan(options: Options, asked: Chat, prompt: str, script: Script | None, index: int, room: int) -> Plan:
    """The plan of one choice of a chat."""
    choice = asked.tool_choice
    tools = asked.tools if choice != "none" else None
    if script is not None:
        if script.tool_calls and not tools:
            # Without tools vLLM parses none: the model's calls stay text.
            calls = "".join(f"<tool_call>{render.text(call)}</tool_call>" for call in script.tool_calls)
            script = msgspec.structs.replace(script, tool_calls=[], text=(script.text or "") + calls)
        elif asked.parallel_tool_calls is False:
            script = msgspec.structs.replace(script, tool_calls=script.tool_calls[:1])
        plan = resumed(script, index, prompt, room, asked.ignore_eos, begun_of(asked))
    elif tools and (choice == "required" or isinstance(choice, dict)):
        functions = {tool["function"]["name"]: tool["function"] for tool in tools}
        name = choice["function"]["name"] if isinstance(choice, dict) else next(iter(functions))
        call = wire.Call(name, smallest(functions[name].get("parameters") or {"type": "object"}))
        plan = scripted(Script(tool_calls=[call]), index, prompt, room, asked.ignore_eos)
    elif (text := constrained(asked)) is not None:
        plan = said(text, room)
    elif options.reasoning:
        thought = draw(prompt, asked, index + 1000, max(1, room // 2), options.output_tokens)
        plan = draw(prompt, asked, index, max(1, room - len(thought.words)), options.output_tokens)
        thinking = [Step("reasoning", step.text, step.ids) for step in thought.whole()]
        plan = Plan(plan.finish, None, plan.eos, [], thinking + plan.whole(), thought.text, plan.text, [])
    else:
        plan = draw(prompt, asked, index, room, options.output_tokens)
    if asked.stop or asked.stop_token_ids:
        plan = stop(asked, plan)
    if isinstance(choice, dict) and plan.finish == "tool_calls":
        plan.finish = "stop"  # vLLM: a named tool call finishes with "stop"
    return plan


def stop(asked: Generate, plan: Plan) -> Plan:
    """Apply the request's stop strings and token ids."""
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    return stopped(plan, stops, asked.stop_token_ids or [], asked.include_stop_str_in_output)


def complete(worker: Worker, connection: Connection, request: Request, entry: Entry) -> None:
    """POST /v1/completions."""
    options = worker.options
    asked = wire.decode(wire.complete_decoder, request.body)
    given = wire.check_complete(asked)
    model = check_model(worker, asked.model)
    prompts = [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in given]
    ids = [prompt if isinstance(prompt, list) else None for prompt in given]
    script = script_of(prompts[0], asked.sim)
    fault = fault_of(worker, request, asked.sim_fault, script.fault if script else None)
    entry.kv = worker.connector.role(asked, prompts, asked.max_tokens)
    n = asked.n or 1
    plans: list[Plan] = []
    total = cached = 0
    for text, tokens in zip(prompts, ids, strict=True):
        count = len(tokens) if tokens is not None else tokenizer.count(text)
        room = wire.check_context(count, asked.max_tokens, options.max_model_len, options.strict_context)
        total += count
        cached += worker.engine.cached(
            chain(text, salt_of(worker, asked)), count, read_of(worker, asked, text if tokens is None else tokens)
        )
        own = script if len(prompts) == 1 or script is None else script_of(text, asked.sim)
        plans += [complete_plan(options, asked, text, own, index, room) for index in range(n)]
    if entry.kv == "decode":
        cached = total - 1
    ident = entry.id = identify(request, "cmpl", asked.request_id)
    meta = render.Meta(ident, int(time.time()), model, total, cached, options.token_details, False)
    shown = [text for text in prompts for _ in range(n)] if asked.echo else []
    returned = None
    if asked.return_token_ids:
        known = [t if t is not None else tokenizer.encode(p) for t, p in zip(ids, prompts, strict=True)]
        returned = [tokens for tokens in known for _ in range(n)]
        shown = [""] * len(plans)  # vLLM echoes no text when it returns the prompt's ids
    forms = fault.forms if fault else frozenset()
    if asked.stream:
        streamed = Streamed(worker, connection, entry, fault)
        streamed.stream = render.TextStream(asked, meta, plans, forms, shown, returned)
        launch(worker, streamed, plans, total, cached)
    else:
        plain = Plain(worker, connection, entry, fault)
        plain.tells = request.header(b"endpoint-load-metrics-format") or b""
        kv = None
        if entry.kv == "prefill":
            kv = worker.connector.places(ident, prompts[0], total, worker.port)
        rest = render.text_plain(asked, meta, plans, forms, shown, returned, kv)
        plain.body = render.begun(meta, "text_completion", rest)
        launch(worker, plain, plans, total, cached)


def complete_plan(options: Options, asked: Complete, text: str, script: Script | None, index: int, room: int) -> Plan:
    """The plan of one choice of a text completion."""
    if asked.echo and asked.max_tokens == 0:
        # vLLM makes one token, shows none of it, and counts it.
        return Plan("length", None, False, [], [Step("content", "", [tokenizer.token_id(" ")])])
    if script is not None:
        plan = resumed(script, index, text, room, asked.ignore_eos, after_script(text))
    elif (least_text := constrained(asked)) is not None:
        plan = said(least_text, room)
    else:
        plan = draw(text, asked, index, room, options.output_tokens)
    return stop(asked, plan) if asked.stop or asked.stop_token_ids else plan


def launch(worker: Worker, exchange: Exchange, plans: list[Plan], tokens: int, cached: int) -> None:
    """Hand an exchange to the engine, unless a fault answers it or the queue is full. Raises Refused."""
    entry = exchange.entry
    entry.prompt_tokens, entry.cached_tokens = tokens, cached
    if (fault := exchange.fault).spec:
        entry.fault = fault.spec
        if fault.end and exchange.hostile():
            return
    exchange.weight = len(plans)
    exchange.uncached = tokens - cached
    made = sum([plan.tokens for plan in plans])
    exchange.need = tokens + made
    if isinstance(exchange, Plain):
        exchange.tokens, exchange.longest = made, max([plan.length for plan in plans])
        exchange.finishes = [plan.finish for plan in plans]
    engine = worker.engine
    try:
        if not engine.submit(exchange):
            worker.ledger.waiting = len(engine.queue)
            worker.ledger.check()
    except Full:
        message = "The server is overloaded: too many requests are queued."
        raise Refused(503, "ServiceUnavailableError", message) from None
