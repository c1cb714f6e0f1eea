"""Requests of Google's API to canonical ones.

`Conversation` reads the contents; this module reads what stands beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from gateway.core.http import Request
from gateway.core.messages import (
    Chat,
    CountTokens,
    Extra,
    Logprobs,
    NamedTool,
    Op,
    Output,
    Sampling,
    Tool,
)
from gateway.core.sealing import Sealing
from gateway.dialects._shared.api import Api
from gateway.dialects._shared.faults import unsupported, wrong
from gateway.dialects._shared.objects import members_of, take_object
from gateway.dialects._shared.queries import query
from gateway.dialects.gemini.conversation import Conversation, listed
from gateway.dialects.gemini.embeddings import read_embed
from gateway.dialects.gemini.fields import UNREAD
from gateway.dialects.gemini.names import in_camel_case, read_named, unread_in
from gateway.dialects.gemini.schemas import json_schema
from gateway.dialects.gemini.signatures import Thoughts
from gateway.dialects.gemini.views import ChatBody, ConfigIn, FunctionIn, PromptBody, ThinkingIn, ToolConfigIn, ToolIn
from gateway.wire.json import NULL, check_depth, encode, text_in
from gateway.wire.openai.requests.constraints import constrain
from gateway.wire.unknown import known_to

OPERATIONS = {
    "generate": "chat",
    "stream": "chat",
    "count": "count",
    "embed": "embed",
    "embed_many": "embed",
    "predict": "embed",
}
"""Route of a request to a model -> the operation whose field table it has."""


B = TypeVar("B", bound=PromptBody)


class _Config(Struct, rename="camel"):
    generation_config: ConfigIn


_chat, _count, _config = Decoder(ChatBody), Decoder(PromptBody), Decoder(_Config)
_CONFIG = known_to(ConfigIn)
_NAMED = frozenset({*_CONFIG, *UNREAD})
_OPTIONAL = {"top_k": "generationConfig.topK"}
"""Parameters that clients send to every model: vLLM's name -> this API's."""
_THINKING = {"reasoning_effort": "generationConfig.thinkingConfig"}
# (a thinking budget below this many tokens, its effort).
_BUDGETS = ((4096, "low"), (16384, "medium"))
_LEVELS = {"MINIMAL": "low", "LOW": "low", "MEDIUM": "medium", "HIGH": "high"}
_MODES = {"MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"}
_CALLING = "toolConfig.functionCallingConfig"
_OBJECT = Raw(b'{"type":"object","properties":{}}')
_WEB_TOOLS = frozenset({"googleSearch", "googleSearchRetrieval", "enterpriseWebSearch", "urlContext"})


class Asked(Struct, frozen=True):
    """The facts of a request that its reply needs.

    id        of the request
    route     its name
    events    its stream is one of server-sent events, not an array
    thoughts  the client wants to see the thinking
    tools     the model may call functions
    sealing   `Request.sealing`
    """

    id: str
    route: str
    events: bool = False
    thoughts: bool = False
    tools: bool = False
    sealing: Callable[[], Sealing] | None = None


def read(request: Request, raw: Extra, api: Api) -> Op:
    """Reads a request to a model. Raises GatewayError(BAD_REQUEST, UNSUPPORTED)."""
    operation = OPERATIONS[request.route]
    if any("_" in name for name in raw):
        raw = in_camel_case(raw, api.known[operation])
    if operation == "count" and "generateContentRequest" in raw:
        raw = _whole_request(raw, api)
    left = _take_config(raw, api) if operation == "chat" else []
    config = raw.pop("generationConfig", None) if operation == "chat" else None
    model, hints = _model(request, raw)
    extra, dropped = api.settle(raw, operation)
    left = [*dropped, *left]
    if "cachedContent" in raw:
        raise unsupported("cachedContent", "is not supported: nothing is kept here")
    op: Op
    if operation == "embed":
        op = read_embed(raw, left, api.extras)
        op.memo, op.extra = Asked(request.id, request.route), extra
    elif operation == "count":
        prompt = _prompt(raw, left, request, api, _count)[0]
        prompt.extra, prompt.model = extra, model
        op = CountTokens(model=model, prompt_of=prompt)
    else:
        op = _read_chat(raw, config, left, request, api)
        op.extra = constrain(op, extra)
    op.model, op.model_hints, op.dropped = model, hints, tuple(left)
    return op


def _whole_request(raw: Extra, api: Api) -> Extra:
    """The members of the request whose tokens are counted."""
    inner = members_of(raw["generateContentRequest"])
    if inner is None:
        raise wrong("generateContentRequest", "must be an object")
    return in_camel_case(inner, api.known["count"])


def _model(request: Request, raw: Extra) -> tuple[str | None, tuple[str, ...]]:
    """(the model, the names that go before it where the configuration has one of them: those of the path). Vertex AI's
    clients write `org/model` as a model of a publisher. Raises GatewayError(BAD_REQUEST)."""
    named = text_in(raw["model"]) if "model" in raw else ""
    if named is None:
        raise wrong("model", "must be the name of a model")
    model = request.params.get("model")
    named = named.rpartition("/models/")[2].removeprefix("models/")
    if model is None:
        return named or None, ()
    publisher = request.params.get("place", "").rpartition("/")[2]
    return named or model, (model, f"{publisher}/{model}") if publisher else (model,)


# -- chats ------------------------------------------------------------------------------------------------------------


def _take_config(raw: Extra, api: Api) -> list[str]:
    """Leaves in `generationConfig` what is read. Constraints in it that have no name here become members of `raw`.
    Returns the names of the others."""
    found = raw.get("generationConfig")
    inner = members_of(found) if found is not None else None
    if inner is not None and any("_" in name for name in inner):
        raw["generationConfig"] = Raw(encode(in_camel_case(inner, _NAMED)))
    if found is None:
        return []
    own, left = take_object(raw, "generationConfig", _CONFIG, UNREAD, api.extras, "chat")
    raw["generationConfig"] = Raw(encode(own))
    return left


def _prompt(raw: Extra, left: list[str], request: Request, api: Api, decoder: Decoder[B]) -> tuple[Chat, B]:
    """(a chat that has its prompt and no other parameters, the body). Adds what is left out to `left`."""
    found, unknown = read_named(raw, decoder, api.extras)
    talk = Conversation(listed(found.contents), found.system_instruction, Thoughts(request.sealing))
    asks_for_it = b"GeminiCLI" in (request.header(b"user-agent") or b"")
    tools = tuple(_tools(listed(found.tools), left, frozenset() if asks_for_it else _WEB_TOOLS))
    left += [*unknown, *talk.dropped]
    chat = Chat(model=None, messages=talk.messages, continue_last=talk.continues, tools=tools)
    return chat, found


def _read_chat(raw: Extra, config: Raw | None, left: list[str], request: Request, api: Api) -> Chat:
    op, found = _prompt(raw, left, request, api, _chat)
    inner, unknown = read_named({"generationConfig": config or Raw(b"{}")}, _config, api.extras)
    left += unknown
    given = inner.generation_config
    thinking = given.thinking_config or ThinkingIn()
    stream = request.route == "stream"
    op.memo = Asked(
        request.id,
        request.route,
        stream and query(request).get("alt") == "sse",
        bool(thinking.include_thoughts),
        bool(op.tools),
        request.sealing,
    )
    op.stream = op.include_usage = stream
    op.optional = _OPTIONAL
    op.fit_output = True
    _choose(op, found.tool_config, left)
    _sample(op, given, left)
    _think(op, thinking, left)
    op.output = _output(given)
    return op


def _sample(op: Chat, given: ConfigIn, left: list[str]) -> None:
    op.max_output = given.max_output_tokens or None
    op.n = given.candidate_count or 1
    op.sampling = Sampling(
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        seed=given.seed,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
    )
    op.stop = tuple(stop for stop in given.stop_sequences or () if stop)
    if given.response_logprobs:
        op.logprobs = Logprobs(given.logprobs or 0)
    elif given.logprobs is not None:
        left.append("generationConfig.logprobs")
    if [one.upper() for one in given.response_modalities or ("TEXT",)] != ["TEXT"]:
        raise unsupported("generationConfig.responseModalities", "must be TEXT alone: workers write nothing else")


def _think(op: Chat, found: ThinkingIn, left: list[str]) -> None:
    """Sets the reasoning effort, from the level, else from the budget: 0 turns it off, -1 leaves it to the model."""
    budget = found.thinking_budget
    level = (found.thinking_level or "").upper()
    effort = _LEVELS.get(level)
    if effort is None and level not in ("", "THINKING_LEVEL_UNSPECIFIED"):
        left.append("generationConfig.thinkingConfig.thinkingLevel")
    if effort is None and budget is not None and budget >= 0:
        effort = next((word for most, word in _BUDGETS if budget < most), "high") if budget else "none"
    if effort is not None:
        op.reasoning = effort
        op.optional = {**op.optional, **_THINKING}


def _output(given: ConfigIn) -> Output | None:
    kind = given.response_mime_type or "text/plain"
    if given.response_json_schema != NULL:
        schema = given.response_json_schema
        check_depth({"generationConfig.responseJsonSchema": schema})
        if members_of(schema) is None:
            raise wrong("generationConfig.responseJsonSchema", "must be an object")
    elif given.response_schema != NULL:
        schema = json_schema(given.response_schema, "generationConfig.responseSchema")
    else:
        schema = NULL
    if kind == "text/x.enum":
        values = _words(schema)
        if not values:
            raise wrong("generationConfig.responseSchema", "needs an 'enum' of texts for text/x.enum")
        return Output("choice", choices=values)
    if kind not in ("text/plain", "application/json"):
        raise wrong("generationConfig.responseMimeType", "must be text/plain, application/json or text/x.enum")
    if schema != NULL:
        return Output("schema", schema, name="output", strict=True)
    return Output("json") if kind == "application/json" else None


def _words(schema: Raw) -> tuple[str, ...]:
    """The texts in a schema's `enum`."""
    try:
        found = Decoder(list[str]).decode((members_of(schema) or {}).get("enum", NULL))
    except ValueError:
        return ()
    return tuple(found)


# -- tools ------------------------------------------------------------------------------------------------------------


def _tools(found: list[ToolIn], left: list[str], optional: frozenset[str]) -> list[Tool]:
    """The functions that the model may call. optional: the tools that are left out and named. Tools of the web are
    optional, but not for Gemini CLI, whose requests for a search or a page are made for its result alone. Raises
    GatewayError(UNSUPPORTED) for what else only Google's servers do."""
    functions: list[Tool] = []
    unread: dict[str, None] = {}
    for index, tool in enumerate(found):
        given = unread_in(tool)
        unread.update(dict.fromkeys(f"tools[].{name}" for name in given if name in optional))
        if others := [name for name in given if name not in optional]:
            raise unsupported(f"tools.{index}.{others[0]}", "is not supported: no worker does this")
        for position, one in enumerate(listed(tool.function_declarations)):
            functions.append(_function(one, f"tools.{index}.functionDeclarations.{position}", unread))
    left += unread
    return functions


def _function(found: FunctionIn, param: str, unread: dict[str, None]) -> Tool:
    if found.parameters_json_schema != NULL:
        schema = found.parameters_json_schema
        if members_of(schema) is None:
            raise wrong(f"{param}.parametersJsonSchema", "must be an object")
        check_depth({f"{param}.parametersJsonSchema": schema})
    elif found.parameters != NULL:
        schema = json_schema(found.parameters, f"{param}.parameters")
    else:
        schema = _OBJECT
    for name in unread_in(found, "parameters", "parameters_json_schema"):
        unread[f"tools[].functionDeclarations[].{name}"] = None
    return Tool(found.name, found.description, schema)


def _choose(op: Chat, found: ToolConfigIn | None, left: list[str]) -> None:
    """Reads `toolConfig`. Raises GatewayError(BAD_REQUEST)."""
    if found is None:
        return
    left += [f"toolConfig.{name}" for name in unread_in(found)]
    calling = found.function_calling_config
    if calling is None:
        return
    left += [f"{_CALLING}.{name}" for name in unread_in(calling)]
    mode = (calling.mode or "AUTO").upper()
    if mode not in _MODES:
        raise wrong(f"{_CALLING}.mode", "must be AUTO, ANY, NONE or VALIDATED")
    if op.tools:
        _allow(op, mode, set(calling.allowed_function_names or ()), left)
    elif mode == "ANY":
        raise wrong("toolConfig", "asks for a call, but there are no functions in 'tools'")
    else:
        left.append("toolConfig")


def _allow(op: Chat, mode: str, allowed: set[str], left: list[str]) -> None:
    """Functions that are not allowed are left out: there is no choice of several tools."""
    if allowed and mode in ("ANY", "VALIDATED"):
        unknown = sorted(allowed - {tool.name for tool in op.tools})
        if unknown:
            raise wrong(f"{_CALLING}.allowedFunctionNames", f"there is no function '{unknown[0][:64]}'")
        op.tools = tuple([tool for tool in op.tools if tool.name in allowed])
    elif allowed:
        left.append(f"{_CALLING}.allowedFunctionNames")
    match mode:
        case "ANY":
            op.tool_choice = NamedTool(op.tools[0].name) if len(allowed) == 1 else "required"
        case "NONE":
            op.tool_choice = "none"
        case "VALIDATED":
            op.tools = tuple([replace(tool, strict=True) for tool in op.tools])
            op.tool_choice = "auto"
        case _:
            op.tool_choice = "auto"
