"""What becomes of every field of every dialect, measured: each is sent alone, and what a worker would get is compared
with what it would get without it.

A field that has no meaning alone is sent beside another (`Field.beside`), and so is what it is compared with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway import backends, dialects
from gateway.core.errors import GatewayError
from gateway.core.fields import Example, Field, own_names, with_field
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import AnsweredFromStore, Complete, ListModels, Op, Question
from gateway.core.ports import Capabilities, Dialect, Settings
from gateway.core.upload import InMemory
from gateway.translation import totals
from gateway.translation.ability import write_possible
from gateway.translation.whole import ask
from gateway.wire.multipart import FormReader

CAN = Capabilities("the-model")
BACKENDS = {name: backends.create(name) for name in backends.REGISTRY}
DIALECTS: Mapping[str, Dialect] = {name: dialects.create(name, Settings()) for name in dialects.REGISTRY}
# The backend that the handling is declared for.
REFERENCE = "vllm"

NEUTRAL = "the value that is measured is neutral"
# (backend, field) that does not reach the worker although it reaches vLLM, and why that loses nothing.
UNSAID = {
    ("tgi", "parameters.details"): "details come in any case",
    ("tgi", "return_token_strs"): "texts come in any case",
    ("tgi", "ignore_eos"): NEUTRAL,
    ("tgi", "skip_special_tokens"): NEUTRAL,
    ("tgi", "include_reasoning"): NEUTRAL,
    ("llamacpp", "skip_special_tokens"): NEUTRAL,
    ("llamacpp", "include_reasoning"): NEUTRAL,
    ("tgi", "include_output_logprobs"): "logprobs come in any case",
    ("tgi", "parallel_tool_calls"): "false is measured, and its grammar of tools makes one call at most",
}

What = Literal["sent", "refused", "dropped", "acted", "nothing"]


# What a worker would answer, asked how long the prompt is.
_PROMPT_TOKENS = 3


class Outcome(Struct, frozen=True):
    """what      sent: the worker gets something else; acted: only the canonical request differs
    changes   what the worker gets, by name, None for what is gone; "path" is the request's own
    status    of the refusal, as the client sees it; told is its body
    path      the worker's, of what is sent
    """

    what: What
    changes: Mapping[str, Any] = {}
    status: int = 0
    told: str = ""
    path: str = ""


class Outcomes(Mapping[str, Outcome]):
    """Of one field, by backend; each is measured when it is first asked for: whoever collects tests asks for few."""

    def __init__(self, dialect: str, operation: str, field: Field) -> None:
        self._of = dialect, operation, field
        self._known: dict[str, Outcome] = {}

    def __getitem__(self, backend: str) -> Outcome:
        if backend not in self._known:
            self._known[backend] = measure(*self._of, backend)
        return self._known[backend]

    def __iter__(self) -> Iterator[str]:
        return iter(BACKENDS)

    def __len__(self) -> int:
        return len(BACKENDS)


class Row(Struct, frozen=True):
    """One field and what became of it before each backend."""

    dialect: str
    operation: str
    field: Field
    outcomes: Mapping[str, Outcome]

    def __str__(self) -> str:
        return f"{self.dialect}-{self.operation}-{self.field.name}"


def rows() -> Iterator[Row]:
    """Of every field of every dialect, in the order of registration and declaration."""
    for name, dialect in DIALECTS.items():
        for operation, fields in dialect.fields.items():
            for field in fields:
                yield Row(name, operation, field, Outcomes(name, operation, field))


def measure(dialect: str, operation: str, field: Field, backend: str) -> Outcome:
    """What becomes of `field`; of its probe, where the sample leaves no trace."""
    outcome = _measure(dialect, operation, field, field.sample, backend)
    if outcome.what == "nothing" and field.probe is not None:
        probed = _measure(dialect, operation, field, field.probe, backend)
        return outcome if probed.what == "nothing" else Outcome("acted")
    return outcome


def _measure(dialect: str, operation: str, field: Field, value: Any, backend: str) -> Outcome:
    example = DIALECTS[dialect].examples[operation][0]
    given = {name: one for name, one in field.beside.items() if one is not None}
    # What stands beside it may replace what the example has.
    gone = {name for name in field.beside if name not in given} if given else set()
    beside = {name: one for name, one in {**example.body, **given}.items() if name not in gone}
    message = field.where == "message"
    least, request = asking(example, beside, message), _with(example, field, value)
    try:
        # Twice: what differs between the two is drawn anew each time, such as a seed.
        before, drawn = (_through(dialect, least, backend) for _ in range(2))
        op, after, dropped = _through(dialect, request, backend)
    except _Refused as refused:
        return Outcome("refused", status=refused.status, told=refused.told)
    if field.name in dropped:
        return Outcome("dropped")
    volatile = {name for name in before[1] if before[1][name] != drawn[1].get(name)}
    names = sorted({*before[1], *after})
    changes = {name: after.get(name) for name in names if before[1].get(name) != after.get(name)}
    if field.name not in volatile:
        changes = {name: value for name, value in changes.items() if name not in volatile}
    if changes:
        return Outcome("sent", changes, path=after["path"])
    return Outcome("acted" if _acts(before[0], op, drawn[0]) else "nothing")


def request_with(dialect: str, operation: str, field: Field) -> Request:
    """The least request with the sample of `field`."""
    return _with(DIALECTS[dialect].examples[operation][0], field, field.sample)


def asking(example: Example, body: Mapping[str, Any], message: bool = False) -> Request:
    """A request like `example` with another body; message: of a web socket."""
    text = json.dumps({"type": "response.create", **body} if message else body).encode()
    request = Request("POST", "/", [JSON_TYPE], text, example.query, example.route, {}, "r", message=message)
    request.form = example.form(body)
    return request


def _with(example: Example, field: Field, value: Any) -> Request:
    if field.where in ("body", "message"):
        return asking(example, with_field(example.body, field, value), field.where == "message")
    request = asking(example, example.body)
    if field.where == "file":
        request.form = example.form(example.body, {field.name: str(value).encode()})
    elif field.where == "header":
        request.headers.append((field.name.lower().encode(), str(value).encode()))
    else:
        request.query = f"{field.name}={value}".encode()
    return request


class _Refused(Exception):
    """With the status and the text that the client sees."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.status = response.status
        self.told = response.body.decode()


def _through(dialect: str, request: Request, backend: str) -> tuple[Op, dict[str, Any], tuple[str, ...]]:
    """The canonical request, the members of the worker's, and the names of what is dropped."""
    op: Op | None = None
    try:
        asked = DIALECTS[dialect].read(request)
        assert not isinstance(asked, (ListModels, AnsweredFromStore))
        op = asked
        if isinstance(op, Question):
            return op, _flat(ask(op, BACKENDS[backend], CAN).request), op.dropped
        outgoing = write_possible(BACKENDS[backend], totals.first_request(op), CAN)
        if totals.length_request(op, BACKENDS[backend], CAN) is not None:
            assert isinstance(op, Complete)
            totals.apply_prompt_length(op, _PROMPT_TOKENS)
            outgoing = BACKENDS[backend].write(op, CAN)
        return op, _flat(outgoing), (*op.dropped, *own_names(outgoing.dropped, DIALECTS[dialect].fields))
    except GatewayError as error:
        raise _Refused(DIALECTS[dialect].refuse(error, request, op)[0]) from None


def _flat(request: Request) -> dict[str, Any]:
    """The members of a worker's request, those of its `parameters` among them."""
    if not request.body.startswith(b"{"):
        return {**_parts(request), "path": request.path}
    body = json.loads(request.body)
    parameters = body.pop("parameters", {})
    return {**body, **parameters, "path": request.path}


def _parts(request: Request) -> dict[str, Any]:
    """The parts of an upload, by name."""
    reader = FormReader(request.header(b"content-type"), (content := bytearray()).extend)
    reader.feed(request.body)
    form = reader.end(InMemory())
    files = {file.field: content[file.start : file.start + file.size].decode() for file in form.files}
    return {name.removesuffix("[]"): _value(value) for name, value in form.fields} | files


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _acts(before: Op, after: Op, drawn: Op) -> bool:
    """Whether the canonical requests differ in more than what is kept of the client's own bytes."""
    own = {"raw", "extra", "wire"}
    one, two, other = (msgspec.structs.asdict(op) for op in (before, after, drawn))
    return any(one[name] != two[name] for name in one if name not in own and one[name] == other[name])


# -- the pages ------------------------------------------------------------------------------------------------------


def index() -> str:
    """What docs/fidelity.md has of all dialects: the pages, and what is left out without a word."""
    listed = [f"- [{dialect}](fidelity/{dialect}.md)" for dialect in DIALECTS]
    unsaid = [f"- `{field}`, {backend}: {why}" for (backend, field), why in UNSAID.items()]
    left = "Fields that reach vLLM but not these workers, and that the reply does not name, because nothing is lost:"
    return "\n".join([*listed, "", left, "", *unsaid])


def pages(found: list[Row]) -> dict[str, str]:
    """The page of each dialect: a table for each of its operations."""
    columns = " | ".join(BACKENDS)
    top = [f"| field | handling | {columns} | |", "|---|---|" + "---|" * (len(BACKENDS) + 1)]
    made = {}
    for dialect in DIALECTS:
        parts = [
            f"# Fidelity: {dialect}\n\n[What the words mean](../fidelity.md), [the API](../dialects/{dialect}.md).\n"
        ]
        for operation in DIALECTS[dialect].fields:
            lines = [row for row in found if (row.dialect, row.operation) == (dialect, operation)]
            parts.append(f"## {operation}\n\n" + "\n".join([*top, *map(_line, lines)]) + "\n")
        made[dialect] = "\n".join(parts)
    return made


def _line(row: Row) -> str:
    cells = [f"`{row.field.name}`", row.field.handling]
    cells += [_cell(row.field, outcome) for outcome in row.outcomes.values()]
    return "| " + " | ".join([*cells, row.field.note.replace("|", "\\|")]) + " |"


def _cell(field: Field, outcome: Outcome) -> str:
    if outcome.what == "refused":
        return str(outcome.status)
    if outcome.what == "dropped":
        return "*named*"
    if outcome.what != "sent":
        return "—"
    if outcome.changes.get(field.name) == field.sample and set(outcome.changes) <= {field.name, *_COMPANIONS}:
        return "✓"
    names = [f"`{name}`" for name, value in outcome.changes.items() if value is not None]
    return ", ".join(names) or "—"


# What is always asked of a worker together with a stream.
_COMPANIONS = {"stream_options"}
