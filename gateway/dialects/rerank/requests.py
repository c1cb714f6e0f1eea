"""Requests to rank documents, to score pairs, for tokens and for their text, into the canonical form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request
from gateway.core.messages import Detokenize, Extra, Op, Score, Tokenize
from gateway.dialects._shared.api import Api
from gateway.dialects._shared.faults import wrong
from gateway.dialects.rerank.fields import FIELDS
from gateway.wire.json import check_depth, encode, missing, typed
from gateway.wire.openai.requests import reading
from gateway.wire.openai.requests.bounds import refuse_out_of_range

MOST_DOCUMENTS = 10_000
"""The limit of Cohere's first API."""
_MOST_FIELDS = 64
OPERATIONS = {"rerank_v1": "rerank", "rerank_v2": "rerank"}
"""Route -> operation, where they are called differently."""

T = TypeVar("T", bound=Struct)
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Ranking(Struct, frozen=True):
    """The facts of a request for a ranking that its reply needs.

    id         of the reply
    version    of Cohere's API
    top        the most results; None: all
    shown      the members of each result that hold its document, in the order of the request; None if it has none
    texts      TEI's form
    """

    id: str
    version: str
    top: int | None
    shown: tuple[dict[str, Any], ...] | None
    texts: bool


class _TextIn(Struct):
    text: str


class _ScoringIn(Struct, kw_only=True):
    model: str | None = None
    user: str | None = None
    max_tokens_per_doc: _Count | None = None
    max_tokens_per_query: _Count | None = None
    use_activation: bool | None = None
    instruction: str | None = None
    cache_salt: str | None = None
    truncation_side: str | None = None


class _RerankIn(_ScoringIn, kw_only=True):
    query: str | _TextIn
    documents: str | list[str | dict[str, Any]] | None = None
    texts: list[str] | None = None
    top_n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    rank_fields: Annotated[list[str], Meta(max_length=_MOST_FIELDS)] | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None


class _ScoreIn(_ScoringIn, kw_only=True):
    queries: str | list[str] | None = None
    data_1: str | list[str] | None = None
    text_1: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    data_2: str | list[str] | None = None
    text_2: str | list[str] | None = None


class _TokenizeIn(Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class _DetokenizeIn(Struct, kw_only=True):
    model: str | None = None
    tokens: list[_Count]


_rerank = msgspec.json.Decoder(_RerankIn)
_score = msgspec.json.Decoder(_ScoreIn)
_tokenize = msgspec.json.Decoder(_TokenizeIn)
_detokenize = msgspec.json.Decoder(_DetokenizeIn)

# Members that workers get as they are.
_PASSED = {
    operation: frozenset(field.name for field in FIELDS[operation] if field.handling == "mapped") - own
    for operation, own in (
        ("rerank", {"query", "documents", "user"}),
        ("score", {"user"}),
        ("tokenize", {"prompt", "tools", "add_special_tokens", "return_token_strs"}),
        ("detokenize", {"tokens"}),
    )
}
_FIRST, _SECOND = ("queries", "data_1", "text_1"), ("documents", "items", "data_2", "text_2")


def read(request: Request, raw: Extra, api: Api) -> Op:
    """Raises GatewayError (BAD_REQUEST, UNSUPPORTED)."""
    operation = OPERATIONS.get(request.route, request.route)
    extra, dropped = api.settle(raw, operation)
    # An ignored field may hold any number: no worker gets it.
    refuse_out_of_range({name: value for name, value in raw.items() if name not in api.ignored[operation]}, extra)
    passed = {name: raw[name] for name in _PASSED[operation] if name in raw}
    check_depth(passed)
    extra = {**extra, **passed}
    if operation == "rerank":
        op: Op = _read_rerank(raw, extra, request)
    elif operation == "score":
        op = _read_score(raw, extra)
        op.memo = request.id
    elif operation == "tokenize":
        op = _read_tokenize(raw, extra, api.extras)
    else:
        found = typed(encode(raw), _detokenize)
        op = Detokenize(model=found.model, tokens=tuple(found.tokens), extra=extra)
    op.dropped = (*dropped, *op.dropped)
    return op


# -- ranking ----------------------------------------------------------------------------------------------------------


def _read_rerank(raw: Extra, extra: Extra, request: Request) -> Score:
    found = typed(encode(raw), _rerank)
    query = found.query if isinstance(found.query, str) else found.query.text
    if not query.strip():
        raise wrong("query", "must not be blank")
    if found.texts is not None and found.documents is not None:
        raise wrong("documents", "and 'texts' are two names for one thing: send one")
    given = found.texts if found.texts is not None else found.documents
    name = "texts" if found.texts is not None else "documents"
    documents: Sequence[str | dict[str, Any]] = [given] if isinstance(given, str) else given or ()
    _bounded(name, documents)
    # A name that is given twice counts once: else a large text could be repeated for a few bytes.
    fields = {name: index for index, name in enumerate(dict.fromkeys(found.rank_fields or ()))}
    texts = tuple([_text_of(one, at, fields) for at, one in enumerate(documents)])
    _add_of_tei(found, extra)
    tei = found.texts is not None
    asked = found.return_text if tei else found.return_documents
    shown = asked if asked is not None else not tei and request.route != "rerank_v2"
    version = "1" if request.route == "rerank_v1" else "2"
    returned = tuple([_shown(one, text, tei) for one, text in zip(documents, texts, strict=True)]) if shown else None
    return Score(
        model=found.model,
        queries=(query,),
        documents=texts,
        user=found.user,
        extra=extra,
        memo=Ranking(f"rerank-{request.id}", version, found.top_n, returned, tei),
    )


def _add_of_tei(found: _RerankIn, extra: Extra) -> None:
    """Adds to `extra` what TEI's names mean in those of vLLM. Those that the client sent itself go before."""
    members: dict[str, Any] = {}
    if found.raw_scores is not None:
        members["use_activation"] = not found.raw_scores
    if found.truncation_direction is not None and found.truncation_direction.lower() not in ("left", "right"):
        raise wrong("truncation_direction", "must be 'Left' or 'Right'")
    if found.truncate:
        members["truncate_prompt_tokens"] = -1
        if found.truncation_direction is not None:
            members["truncation_side"] = found.truncation_direction.lower()
    for name, value in members.items():
        extra.setdefault(name, Raw(encode(value)))


_TEXT: Mapping[str, int] = {"text": 0}


def _text_of(document: str | dict[str, Any], at: int, fields: Mapping[str, int]) -> str:
    """The text by which a document is ranked. fields: its members, by name, and their order; none: `text`. Takes a step
    for each member of the document, however many fields there are. Raises GatewayError(BAD_REQUEST) if the document has
    none."""
    if isinstance(document, str):
        return document
    order = fields or _TEXT
    named = sorted([(order[name], name) for name, text in document.items() if name in order and isinstance(text, str)])
    lines = [document[name] for _, name in named]
    if not lines:
        asked = "a member that 'rank_fields' names" if fields else "'text'"
        raise wrong(f"documents.{at}", f"must be a text, or an object with a text in {asked}")
    return "\n".join(lines)


def _shown(document: str | dict[str, Any], text: str, tei: bool) -> dict[str, Any]:
    """The member of a result that returns a document: its text in TEI's form, else an object with `text`, the client's
    own if it sent one."""
    return {"text": text} if tei else {"document": {"text": text, **({} if isinstance(document, str) else document)}}


# -- scores -----------------------------------------------------------------------------------------------------------


def _read_score(raw: Extra, extra: Extra) -> Score:
    found = typed(encode(raw), _score)
    first, queries = _one_of(found, _FIRST)
    second, documents = _one_of(found, _SECOND)
    if any(not one.strip() for one in queries):
        raise wrong(first, "must not be blank")
    if len(queries) not in (1, len(documents)):
        raise wrong(first, f"must be one, or one for each of '{second}': there are {len(queries)} and {len(documents)}")
    return Score(model=found.model, queries=queries, documents=documents, user=found.user, extra=extra)


def _one_of(found: _ScoreIn, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The name and the texts of the one member among `names` that was sent."""
    sent = [name for name in names if getattr(found, name) is not None]
    if not sent:
        raise missing(names[0])
    if len(sent) > 1:
        raise wrong(sent[0], f"and '{sent[1]}' are two names for one thing: send one")
    given = getattr(found, sent[0])
    texts = (given,) if isinstance(given, str) else tuple(given)
    _bounded(sent[0], texts)
    return sent[0], texts


# -- tokens -----------------------------------------------------------------------------------------------------------


def _read_tokenize(raw: Extra, extra: Extra, policy: ExtrasPolicy) -> Tokenize:
    found = typed(encode({name: raw[name] for name in _TokenizeIn.__struct_fields__ if name in raw}), _tokenize)
    texts = bool(found.return_token_strs)
    if found.prompt is not None and "messages" not in raw:
        if "tools" in raw:
            raise wrong("tools", "are a part of a chat's prompt: send 'messages'")
        special = found.add_special_tokens is not False
        return Tokenize(model=found.model, prompt=found.prompt, special=special, texts=texts, extra=extra)
    if "messages" not in raw:
        raise missing("prompt")
    if found.continue_final_message and found.add_generation_prompt:
        raise wrong("continue_final_message", "and 'add_generation_prompt' cannot both be true")
    talk: Extra = {name: raw[name] for name in ("messages", "tools") if name in raw}
    chat = reading.read_chat(encode(talk), talk, {}, (), policy)
    chat.continue_last = bool(found.continue_final_message)
    return Tokenize(
        model=found.model,
        prompt=chat,
        special=bool(found.add_special_tokens),
        texts=texts,
        extra=extra,
        # vLLM tokenizes the chat, too.
        dropped=chat.dropped if found.prompt is None else (*chat.dropped, "prompt"),
    )


def _bounded(name: str, texts: Sequence[Any]) -> None:
    """Raises GatewayError(BAD_REQUEST) for no document, and for too many."""
    if not texts:
        raise wrong(name, "must hold at least one text")
    if len(texts) > MOST_DOCUMENTS:
        raise wrong(name, f"must hold at most {MOST_DOCUMENTS} texts")
