"""The content of a reply, decided before its first token: invented text, a script, or the smallest value that a grammar
allows.

A script is the last user message (or the prompt) when it starts with `sim:` and JSON follows, or the body field `sim`:

  text, reasoning   the text, and the thinking          tool_calls   [{"name", "arguments", "id"}]
  pieces            the text, one chunk each            interleave   tool calls stream in turns, not one by one
  tokens            the reply as token ids              repeat       the text or pieces n times
  finish            finish_reason                       stop_reason  as vLLM's field
  choices           one script for each choice          fault        a fault (see `faults`)

A script of a whole conversation is `sim:{"rounds": [...]}` anywhere in a user message, since agents put words of their
own around what their user types. The reply is the round that follows as many answered assistant messages as came after
the script; one whose round calls tools is answered by their results: agents keep the text of a reply that broke in a
call, and ask for the rest. The last round is repeated. `asked`
beside `rounds` holds replies to user messages with certain words in them, such as an agent's request for a summary.
Calls of tools that the request does not offer are left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct, field

from tests.support.simulated import tokenizer
from tests.support.simulated.requests import Call, Generate, Refused, Script, schema, script_decoder
from workers.simulated import answers


class Step(Struct):
    """The content of one chunk: a piece of text, thinking or tool call, and its tokens."""

    kind: str
    text: str
    ids: list[int]
    call: int = 0
    name: str = ""
    call_id: str = ""


class Plan(Struct):
    """One choice of a reply.

    words   the pieces of a reply that is nothing but invented words; then `steps` is empty
    eos     a last token without text ends it, as a model's end-of-sequence does
    """

    finish: str = "stop"
    stop_reason: str | int | None = None
    eos: bool = True
    words: list[bytes] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reasoning: str | None = None
    text: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Completion tokens."""
        if self.words:
            return len(self.words) + self.eos
        return sum([len(step.ids) for step in self.steps]) + self.eos

    @property
    def length(self) -> int:
        """The number of chunks: one for each step, and one for the end of sequence."""
        return len(self.words or self.steps) + self.eos

    @property
    def reasoning_tokens(self) -> int:
        return sum([len(step.ids) for step in self.steps if step.kind == "reasoning"])

    def whole(self) -> list[Step]:
        """All steps, also those of an invented reply."""
        if self.words:
            words = [word.decode() for word in self.words]
            return [Step("content", word, [tokenizer.token_id(word)]) for word in words]
        return self.steps

    def ids(self) -> list[int]:
        """All completion token ids."""
        ids = [token for step in self.whole() for token in step.ids]
        return [*ids, tokenizer.EOS] if self.eos else ids


def script_of(text: str, body: dict[str, Any] | None) -> Script | None:
    """The request's script, if any. Raises Refused for a malformed one."""
    try:
        if body is not None:
            return msgspec.convert(body, Script)
        if text.startswith("sim:"):
            return script_decoder.decode(text[4 : len(text) - len(after_script(text))])
    except msgspec.DecodeError as error:
        raise schema(f"script: {error}", "sim") from None
    return None


def after_script(text: str) -> str:
    """What follows a script: the beginning of the reply to it, if the prompt of a text is to be continued."""
    if not text.startswith("sim:"):
        return ""
    try:
        return text[_json_text.raw_decode(text, 4)[1] :]
    except ValueError:
        return ""


_ROUNDS = 'sim:{"rounds"'
_json_text = json.JSONDecoder()


def round_of(messages: Sequence[tuple[str, str]], offered: Container[str]) -> Script | None:
    """The script for the next reply of a conversation, if a user message holds one.

    messages: (role, text) of each; offered: names of the request's tools. Raises Refused for a script that cannot be
    read."""
    for place in range(len(messages) - 1, -1, -1):
        role, text = messages[place]
        at = text.rfind(_ROUNDS) if role == "user" else -1
        if at < 0:
            continue
        try:
            found = msgspec.convert(_json_text.raw_decode(text, at + len("sim:"))[0], Script)
        except ValueError as error:  # msgspec's errors are some, too
            raise schema(f"script: {error}", "sim") from None
        if not found.rounds:
            raise schema("script: no rounds", "sim")
        last = next(text for role, text in reversed(messages) if role == "user")
        turns = 0
        for (role, _), (after, _) in pairwise(messages[place:]):
            calls = _offered(found.rounds[min(turns, len(found.rounds) - 1)], offered)
            turns += role == "assistant" and (after == "tool" if calls else after != role)
        asked = (script for words, script in found.asked.items() if words in last and last is not text)
        script = next(asked, found.rounds[min(turns, len(found.rounds) - 1)])
        calls = _offered(script, offered)
        said = script.text if script.text is not None or calls else "ok"
        return msgspec.structs.replace(script, tool_calls=calls, text=said)
    return None


def _offered(script: Script, offered: Container[str]) -> list[Call]:
    return [call for call in script.tool_calls if call.name in offered]


def draw(prompt: str, request: Generate, index: int, limit: int, words: int) -> Plan:
    """An invented reply of at most `limit` tokens; `words` is its natural length, 0 to draw that too."""
    drawn = answers.draw(prompt, request, index, limit, words)
    said = drawn.text.encode()
    words_of = [said[at : at + 4] for at in range(0, len(said), 4)]
    return Plan(finish=drawn.finish, eos=drawn.ended, words=words_of, text=drawn.text)


def scripted(script: Script, index: int, prompt: str, limit: int, ignore_eos: bool) -> Plan:
    """A reply as its script says."""
    if script.choices:
        script = script.choices[index % len(script.choices)]
    steps: list[Step] = []
    plan = Plan()
    if script.reasoning:
        plan.reasoning = script.reasoning
        steps += [Step("reasoning", piece, [tokenizer.token_id(piece)]) for piece in tokenizer.split(script.reasoning)]
    if script.tokens is not None:
        plan.text = tokenizer.decode(script.tokens)
        steps += [Step("content", tokenizer.piece(token), [token]) for token in script.tokens]
    elif script.pieces is not None:
        pieces = script.pieces * script.repeat
        plan.text = "".join(pieces)
        steps += [Step("content", piece, tokenizer.encode(piece)) for piece in pieces]
    elif script.text is not None:
        plan.text = script.text * script.repeat
        steps += [Step("content", piece, [tokenizer.token_id(piece)]) for piece in tokenizer.split(plan.text)]
    calls: list[list[Step]] = []
    for number, call in enumerate(script.tool_calls):
        arguments = call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()
        call_id = call.id or f"chatcmpl-tool-{hashlib.sha256(f'{prompt}{index}{number}'.encode()).hexdigest()[:16]}"
        plan.calls.append((call_id, call.name, arguments))
        parts = [Step("call", "", [tokenizer.token_id("<tc>")], number, call.name, call_id)]
        parts += [Step("args", piece, [tokenizer.token_id(piece)], number) for piece in tokenizer.split(arguments)]
        calls.append(parts)
    if script.interleave:
        longest = max(map(len, calls), default=0)
        steps += [parts[i] for i in range(longest) for parts in calls if i < len(parts)]
    else:
        steps += [step for parts in calls for step in parts]
    plan.steps = steps
    plan.finish = script.finish or ("tool_calls" if plan.calls else "stop")
    plan.stop_reason = script.stop_reason
    plan.eos = plan.finish not in ("length", "abort") and script.tokens is None
    if plan.tokens > limit:
        _shorten(plan, limit)
    return plan


def resumed(script: Script, index: int, prompt: str, limit: int, ignore_eos: bool, begun: str) -> Plan:
    """The rest of a scripted reply of which `begun` is there already."""
    if not begun:
        return scripted(script, index, prompt, limit, ignore_eos)
    plan = scripted(script, index, prompt, limit + len(begun), ignore_eos)
    steps: list[Step] = []
    for step in plan.whole():
        if step.kind != "content" or not begun:
            steps.append(step)
        elif not begun.startswith(step.text):
            steps.append(msgspec.structs.replace(step, text=step.text.removeprefix(begun)))
            begun = ""
        else:
            begun = begun.removeprefix(step.text)
    plan.words, plan.steps = [], [step for step in steps if step.kind != "reasoning"]
    plan.text, plan.reasoning = "".join([step.text for step in steps if step.kind == "content"]), None
    if plan.tokens > limit:
        _shorten(plan, limit)
    return plan


def said(text: str, limit: int) -> Plan:
    """A reply of this text, cut at `limit` tokens."""
    plan = Plan(text=text, steps=[Step("content", p, [tokenizer.token_id(p)]) for p in tokenizer.split(text)])
    if plan.tokens > limit:
        _shorten(plan, limit)
    return plan


def _shorten(plan: Plan, limit: int) -> None:
    """Cut a reply of too many tokens as max_tokens does."""
    kept: list[Step] = []
    used = 0
    for step in plan.steps:
        if used + len(step.ids) > limit:
            break
        kept.append(step)
        used += len(step.ids)
    plan.steps, plan.eos, plan.finish, plan.stop_reason = kept, False, "length", None
    plan.text = "".join([step.text for step in kept if step.kind == "content"])
    thought = "".join([step.text for step in kept if step.kind == "reasoning"])
    plan.reasoning = thought or None
    said: dict[int, str] = {step.call: "" for step in kept if step.kind == "call"}
    for step in kept:
        if step.kind == "args":
            said[step.call] += step.text
    plan.calls = [(*plan.calls[number][:2], arguments) for number, arguments in said.items()]


def stopped(plan: Plan, stops: list[str], tokens: list[int], keep: bool) -> Plan:
    """Apply stop strings and stop token ids: the earliest ends the reply; `keep` leaves the stop string in."""
    at, stop = min(((at, s) for s in stops if (at := plan.text.find(s)) >= 0), default=(-1, ""))
    wanted = set(tokens)
    if at < 0 and not (wanted and wanted.intersection(plan.ids())):
        return plan
    end = at + len(stop) if at >= 0 else len(plan.text) + 1
    visible = end if keep else at
    steps: list[Step] = []
    position = 0
    for step in plan.whole():
        if step.kind == "content":
            if hit := wanted.intersection(step.ids):
                steps.append(Step("content", "", step.ids))
                return _ended(plan, steps, hit.pop())
            position += len(step.text)
            if position >= end:
                text = step.text[: max(0, len(step.text) - (position - visible))]
                steps.append(Step("content", text, step.ids))
                break
            if at >= 0 and position > visible:  # vLLM holds back what may become a stop string
                step = Step("content", step.text[: max(0, len(step.text) - (position - visible))], step.ids)
        steps.append(step)
    if at < 0:  # only the end-of-sequence token is in the list
        return _ended(plan, steps, tokenizer.EOS, eos=True)
    return _ended(plan, steps, stop)


def _ended(plan: Plan, steps: list[Step], reason: str | int, eos: bool = False) -> Plan:
    text = "".join([step.text for step in steps if step.kind == "content"])
    return Plan("stop", reason, eos, [], steps, plan.reasoning, text, [])


def constrained(request: Generate) -> str | None:
    """The shortest text that the grammar allows, or None if the request has no grammar. Raises Refused."""
    form = request.response_format or {}
    rules = request.structured_outputs or {}
    if form.get("type") == "json_schema":
        return _json(smallest(form["json_schema"].get("schema") or {}))
    if form.get("type") == "json_object" or rules.get("json_object"):
        return "{}"
    if (wanted := rules.get("json")) is not None:
        try:
            return _json(smallest(msgspec.json.decode(wanted) if isinstance(wanted, str) else wanted))
        except msgspec.DecodeError:
            raise Refused(400, "BadRequestError", "Invalid JSON schema", "structured_outputs") from None
    if rules.get("choice"):
        return str(rules["choice"][0])
    if (pattern := rules.get("regex")) is not None:
        return matching(pattern)
    return None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def smallest(schema: Any) -> Any:
    """The smallest value a JSON schema allows, for the common keywords; `$ref` is not followed. Raises Refused for what
    is no schema."""
    try:
        return _least(schema)
    except (AttributeError, IndexError, KeyError, TypeError) as error:  # a keyword's value is of another type
        raise Refused(400, "BadRequestError", f"Invalid JSON schema: {error}", "structured_outputs") from None


def _least(schema: Any, depth: int = 0) -> Any:
    if not isinstance(schema, dict) or depth > 32:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _least(schema[key][0], depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        names = schema.get("required") or list(schema.get("properties") or {})
        return {name: _least((schema.get("properties") or {}).get(name), depth + 1) for name in names}
    if kind == "array":
        return [_least(schema.get("items"), depth + 1) for _ in range(schema.get("minItems", 0))]
    if kind == "string":
        return "a" * schema.get("minLength", 0)
    if kind in ("integer", "number"):
        return schema.get("minimum", 0)
    return False if kind == "boolean" else None


_CLASSES = {"d": "0", "w": "a", "s": " ", "D": "a", "W": " ", "S": "a", "n": "\n", "t": "\t"}
_ATOM = re.compile(r"\\(.)|\[(\^?)((?:\\.|[^\]])+)\]|([.])|([^\\\[\](){}*+?|^$])")
_TIMES = re.compile(r"\*\??|\+\??|\?|\{(\d+)(?:,\d*)?\}")


def matching(pattern: str) -> str:
    """A short text that matches a simple pattern (no groups, no lookaround). Raises Refused if it finds none."""
    text = ""
    at = 1 if pattern.startswith("^") else 0
    end = len(pattern) - 1 if pattern.endswith("$") and not pattern.endswith("\\$") else len(pattern)
    while at < end and (atom := _ATOM.match(pattern, at, end)):
        at = atom.end()
        escape, negated, members, dot, plain = atom.groups()
        if members:
            first = _CLASSES.get(members[1:2], members[1:2]) if members[0] == "\\" else members[0]
            char = "~" if negated else first
        else:
            char = _CLASSES.get(escape, escape) if escape else "a" if dot else plain
        times = 1
        if (more := _TIMES.match(pattern, at, end)) is not None:
            at = more.end()
            times = int(more[1]) if more[1] else 0 if more[0][0] in "*?" else 1
        text += char * times
    try:
        if at >= end and re.fullmatch(pattern, text):
            return text
    except re.error:
        pass
    raise Refused(400, "BadRequestError", f"Grammar error: cannot handle regex {pattern!r}", "structured_outputs")
