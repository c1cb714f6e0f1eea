"""Reads the facts of a canonical request that pick policies need: its length, and hashes of the prompt's prefixes.

The prompt is treated as one text: tools, then messages without their roles, because no two prompts differ only by roles
in practice; images and sounds as digests. Prefixes end at fixed lengths (`ENDS`), close together at first and further
apart later. So a prompt that continues another one has all keys of that one. Beyond `WHOLE` characters only the first
`SAMPLE` characters of each piece are read, because reading all of 400 KB would take longer than the rest of the pick.
Two prompts that differ only in the unread text count as equal, which can pick a worse worker, but has no other effect.

Keys are Python's own hashes of strings, seeded by the process. Homes (`home_of`, sessions) must be the same in every
gateway: they are BLAKE2b hashes of the tools and the system prompt, at most `FRONT` characters, and the first user
message, at most `FIRST` characters, half of them from its end. If tools and system prompt are most of the first turn,
all conversations that begin with these have a home in common: the first that any gateway sees goes there, and the
others go where that prompt is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate

from msgspec import Raw

from gateway.core.estimate import CHARACTERS, IMAGE, OUTPUT, rough
from gateway.core.http import Headers
from gateway.core.messages import (
    Audio,
    Chat,
    Complete,
    Embed,
    Image,
    Media,
    Message,
    Op,
    Opaque,
    Part,
    Question,
    Refusal,
    Score,
    Text,
    Thinking,
    ToolCall,
)
from gateway.core.routing_facts import RoutingFacts, ring_hash
from gateway.fleet.worker import OUTPUT_COSTS

WHOLE = 16_384
SAMPLE = 512
FRONT = 1_024
FIRST = 1_024
OPENING = 4_096
"""A shorter system prompt is soon computed again."""
STEP = 32_768
ENDS = (
    *range(256, 4_096, 256),
    *range(4_096, WHOLE + 1, 1_024),
    *range(WHOLE + STEP, 8_388_609, STEP),
)
"""Characters."""
_READ_WHOLE = ENDS.index(WHOLE) + 1
_PARTS = tuple(map(slice, (0, *ENDS), ENDS[:_READ_WHOLE]))
_TOKENS = tuple(end // CHARACTERS for end in ENDS)
_MOST_DIGESTED = 4_096


def session_of(headers: Headers, names: frozenset[bytes]) -> int | None:
    """The session that the client named, in the first of these headers (lower case) that it sent."""
    for name, value in headers:
        if name in names and value:
            return ring_hash(value)
    return None


def cache_key_of(op: Op, salt: str | None) -> Sequence[str]:
    """The texts that place all prompts with this `prompt_cache_key`, as `RoutingFacts.first_texts`; () without one."""
    return (salt or "", op.cache_key[:FRONT], "") if op.cache_key else ()


def describe(op: Op, routing: RoutingFacts, salt: str | None, prompt: bool) -> None:
    """Writes the length of `op` into `routing`, with `prompt` also the prefixes. `salt` separates the prompts of
    tenants that share no cache."""
    if isinstance(op, Chat):
        _chat(op, routing, salt, prompt)
    elif isinstance(op, Complete):
        _complete(op, routing, salt, prompt)
    elif isinstance(op, (Embed, Score)):
        routing.prompt = rough(op)
    elif isinstance(op, Media):
        routing.prompt = len(op.words) // CHARACTERS + IMAGE * (0 if op.form is None else len(op.form.files))
    else:
        assert isinstance(op, Question)


def _chat(op: Chat, routing: RoutingFacts, salt: str | None, prompt: bool) -> None:
    if not prompt:
        routing.prompt = rough(op)
        routing.output = _output(op.max_output)
        return
    pieces = [_tool(tool.name, tool.description, tool.parameters) for tool in op.tools] if op.tools else []
    media = 0
    front = end = -1
    turned = False
    messages = op.messages
    for count, message in enumerate(messages, 1):
        role = message.role
        if role == "user":
            if front < 0:
                front = len(pieces)
            elif end < 0:
                end = len(pieces)
        elif front >= 0:
            if end < 0:
                end = len(pieces)
            turned = role == "assistant"
        for part in message.parts:
            if type(part) is Text:
                pieces.append(part.text)
            else:
                media += _part(part, pieces)
        if turned:  # nothing more is asked of the roles
            media += _messages(messages[count:], pieces)
            break
    until = list(accumulate(map(len, pieces)))  # where each piece ends
    size = until[-1] if until else 0
    text = "".join(pieces) if size <= WHOLE else _beginning(pieces, until)
    start = size if front < 0 else until[front - 1] if front else 0
    front_text = text[: min(start, FRONT)]
    if end < 0:
        end = len(pieces)
    first = pieces[front:end] if front >= 0 else ()
    if first:  # of the user; also its end, because some clients put words of their own before their users'
        routing.first_texts = (salt or "", front_text, first[0][: FIRST // 2], first[-1][-FIRST // 2 :])
        if start > OPENING and 2 * start >= until[end - 1]:
            routing.system_texts = (salt or "", front_text, pieces[front - 1][-FRONT:])
    else:
        routing.first_texts = (salt or "", front_text, "")
    if turned:
        routing.system_tokens = start // CHARACTERS
    routing.prompt = size // CHARACTERS + media * IMAGE + 1
    routing.output = _output(op.max_output) * op.n
    _keys(text, pieces, until, routing, salt)
    keys = routing.keys
    routing.prompt_key = _whole(keys[-1] if keys else 0, size, pieces[-1] if pieces else "")
    if turned:
        count = len(pieces) - _since(messages)
        size = until[count - 1] if count else 0
        routing.previous_tokens = size // CHARACTERS
        depth = bisect_right(ENDS, size)
        routing.previous_key = _whole(keys[depth - 1] if depth else 0, size, pieces[count - 1] if count else "")


def _since(messages: Sequence[Message]) -> int:
    """The number of pieces from the last reply on: what the turn before did not have."""
    pieces = 0
    for message in reversed(messages):
        parts = message.parts
        if len(parts) == 1 and type(parts[0]) is Text:
            pieces += 1
        else:
            pieces += sum([2 if type(part) is ToolCall else 1 for part in parts])
        if message.role == "assistant":
            break
    return pieces


def _whole(key: int, size: int, last: str) -> int:
    """Tells a prompt of this size from others with the same last key, by the end of its last piece."""
    return hash((key, size, last[-SAMPLE:]))


def _messages(messages: Sequence[Message], pieces: list[str]) -> int:
    """Appends the texts of the messages, or digests; returns how many images and sounds are among their parts."""
    try:  # most conversations are texts alone, one a message
        pieces += [part.text for one in messages for (part,) in (one.parts,)]  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        return sum([_part(part, pieces) for one in messages for part in one.parts])
    return 0


def _beginning(pieces: Sequence[str], until: Sequence[int]) -> str:
    """The first `WHOLE` characters of more. The rest is not copied, because copying long prompts needs fresh memory."""
    count = bisect_right(until, WHOLE)
    return "".join([*pieces[:count], pieces[count][: WHOLE - until[count]]])


def _sample(pieces: Sequence[str], index: int, at: int) -> str:
    """`SAMPLE` characters from index `at` of that piece on, fewer at the end of all."""
    sample = pieces[index][at : at + SAMPLE]
    while len(sample) < SAMPLE and index + 1 < len(pieces):
        index += 1
        sample += pieces[index][: SAMPLE - len(sample)]
    return sample


def _complete(op: Complete, routing: RoutingFacts, salt: str | None, prompt: bool) -> None:
    routing.prompt = rough(op)
    routing.output = _output(op.max_output) * op.n * len(op.prompts)
    if not prompt or not op.prompts:
        return
    first = op.prompts[0]
    if isinstance(first, str):
        routing.first_texts = (salt or "", first[:FIRST], "")
        _keys(first[:WHOLE], [first], [len(first)], routing, salt)
    else:
        routing.first_texts = (salt or "", repr(first[: FIRST // CHARACTERS]), "")
        _token_keys(first, routing, salt)


def _output(cap: int | None) -> int:
    return OUTPUT_COSTS * (OUTPUT if cap is None else min(OUTPUT, cap))


def _tool(name: str, description: str | None, parameters: Raw | None) -> str:
    schema = str(bytes(parameters), "utf-8", "replace") if parameters is not None else ""
    return f"{name} {description or ''} {schema}"


def _part(part: Part, pieces: list[str]) -> int:
    """Appends the part's text, or its digest; returns 1 for an image or a sound, else 0."""
    if isinstance(part, (Text, Thinking, Refusal)):
        pieces.append(part.text)
    elif isinstance(part, ToolCall):
        pieces += (part.name, part.arguments)
    else:
        pieces.append(_digest(part))
        return 1
    return 0


def _digest(part: Image | Audio | Opaque) -> str:
    """The digest of an image or a sound: its length and at most `_MOST_DIGESTED` characters spread over it, hashed
    the same way in every gateway."""
    if isinstance(part, Opaque):
        text = str(bytes(part.raw), "utf-8", "replace")
    else:
        text = part.url if isinstance(part, Image) else part.data
    size = len(text)
    if size > _MOST_DIGESTED:
        text = text[: SAMPLE // 2] + text[:: size // (_MOST_DIGESTED - SAMPLE) + 1] + text[-SAMPLE // 2 :]
    return blake2b(f"{size} {text}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _keys(text: str, pieces: Sequence[str], until: Sequence[int], routing: RoutingFacts, salt: str | None) -> None:
    """`text` is the beginning of `pieces`, which end at `until`.

    Each key is the sum of the hashes of all parts until there. The order of parts counts for nothing in one key, but it
    does in all of them: where two prompts first differ, their keys do."""
    key = hash(salt)
    keys: list[int] = []
    routing.keys, routing.ends = keys, _TOKENS
    count = bisect_right(ENDS, until[-1]) if until else 0
    for part in _PARTS[:count]:
        key += hash(text[part])
        keys.append(key)
    if count <= _READ_WHOLE:
        return
    index = 0
    for start in ENDS[_READ_WHOLE - 1 : count - 1]:
        index = bisect_right(until, start, index)
        piece = pieces[index]
        at = start - until[index] + len(piece)
        sample = piece[at : at + SAMPLE]
        key += hash(sample if len(sample) == SAMPLE else _sample(pieces, index, at))
        keys.append(key)


def _token_keys(tokens: Sequence[int], routing: RoutingFacts, salt: str | None) -> None:
    key = hash(salt)
    keys: list[int] = []
    start = 0
    for end in _TOKENS[: bisect_right(_TOKENS, len(tokens))]:
        key += hash(tokens[start : min(end, start + SAMPLE)])
        keys.append(key)
        start = end
    routing.keys, routing.ends = keys, _TOKENS
