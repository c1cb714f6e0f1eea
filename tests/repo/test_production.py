"""docs/production.md says what is there: every field of the record, every event, every bound."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.observe.catalogue import FIGURES
from gateway.wire import bulk, json, unknown
from gateway.wire.openai.requests.reading import read_chat
from gateway.wire.openai.requests.views import MOST_PARTS
from tests.support.harness import load_text

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "production.md").read_text()


def table(heading: str, number: int = 0) -> list[list[str]]:
    """The cells of the rows of a table below `heading`."""
    section = re.split(rf"^## {heading}$", PAGE, flags=re.MULTILINE)[1].partition("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[number].splitlines()[2:]]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_field_of_a_record_is_there() -> None:
    told = [name for fields, _ in table("Log") for name in words(fields)]
    assert sorted(told) == sorted(RequestRecord.__struct_fields__)
    (usage,) = (text for fields, text in table("Log") if fields == "`usage`")
    assert set(words(usage)) == set(Usage.__struct_fields__)
    (outcome,) = (text for fields, text in table("Log") if fields == "`outcome`")
    assert set(words(outcome)) == set(words(FIGURES["dragoman_requests_total"].text))
    (phase,) = (text for fields, text in table("Log") if fields == "`phase`")
    assert set(words(phase)) == set(words(FIGURES["dragoman_cancelled_requests_total"].text))
    assert msgspec.structs.asdict(RequestRecord(id="", dialect=""))["event"] == "request"


LOGS = re.compile(r"\b(?:event|rationed|trace|_trace|log|_log|_announce|_on_event)\(")
"""Calls of what logs an event."""


def events() -> Iterator[str]:
    """The names of all events that the code logs; of those that are put together, what they begin with."""
    for path in (ROOT / "gateway").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if LOGS.search(text) else ():
            name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            if not LOGS.fullmatch(f"{name}("):
                continue
            assert isinstance(node, ast.Call)
            for argument in node.args[:2]:
                options = [argument]
                if isinstance(argument, ast.IfExp):
                    options = [argument.body, argument.orelse]
                elif isinstance(argument, ast.BoolOp):
                    options = argument.values
                for option in options:
                    one = option.values[0] if isinstance(option, ast.JoinedStr) else option
                    value = one.value if isinstance(one, ast.Constant) else None  # a number is a logarithm's
                    if isinstance(value, str) and value not in ("", "debug", "info", "warning", "error"):
                        yield value


def test_every_event_is_there_and_no_other() -> None:
    told = {name.removesuffix("…") for *_, names in table("Log", 1) for name in words(names)} - {"id"}
    logged = set(events()) | {"log lines lost", "prompt"}  # the log's own
    assert {"worker down", "limits ", "the keys of tokens cannot be read: ", "attempt failed"} <= logged
    assert [name for name in logged if not any(one.startswith(name) for one in told)] == []
    assert [name for name in told if not any(name.startswith(one) for one in logged)] == []


def test_the_bounds_are_those_of_the_code() -> None:
    said = {int(number.replace(",", "")): text for number, text in table("What bounds a request")}
    assert {
        bulk.MOST_NESTED,
        MOST_PARTS,
        bulk.MOST_MEMBERS,
        bulk.MOST_STRINGS,
        bulk.MOST_VALUES,
        unknown.MOST_OBJECTS,
        unknown.MOST_NAMES,
        MOST_PARTS,
    } == set(said)
    assert f"{json._MOST_MEMBERS:,} at the top" in said[bulk.MOST_MEMBERS]  # a bound that only its page names
    assert f"{unknown.MOST_FOUND:,} that do" in said[unknown.MOST_OBJECTS]
    body = b'{"model":"m","messages":[' + b",".join([b'{"role":"user","content":"x"}'] * 16384) + b"]}"
    assert len(read_chat(body, {}, {}, ()).messages) == 16384
    with pytest.raises(Exception, match="length <= 16384"):
        read_chat(body[:-2] + b',{"role":"user","content":"x"}]}', {}, {}, ())


def test_examples_are_valid() -> None:
    for example in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        config: Any = load_text(example)
        assert config.metrics.listen == "127.0.0.1:9090"
