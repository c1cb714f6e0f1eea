"""Regular expressions before llama.cpp: what its engine would pass over in silence is refused, at little cost."""

from __future__ import annotations

import inspect
import re
import sys
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.llamacpp.patterns import LONGEST, grammar
from gateway.core.errors import GatewayError, Kind


@pytest.mark.parametrize(
    "unit", ["[\u0100-\U0010ffff]", r"[\u0100-\uffff]", "(?:[a\u0100-\uffff])", "[^\u0100-\uffff]", r"[\w\W]", "a?"]
)
@pytest.mark.parametrize("flags", ["", "(?i)"])
def test_patterns_are_not_compiled(unit: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range beyond Latin-1 takes Python's compiler 4 ms, and a pattern of 1,000 characters can have 200."""
    pattern = flags + unit * min(100, LONGEST // len(unit) - 1)
    with monkeypatch.context() as patch:
        patch.setattr("re._compiler.compile", None)
        made = grammar(pattern)
    assert made == f"%llguidance {{}}\nstart: /{pattern}/"


def test_what_pythons_documentation_does_not_promise_is_there() -> None:
    """`re._parser` has no public name. A Python without it fails here, by name, and nowhere else first."""
    parser = getattr(re, "_parser", None)
    assert parser is not None, f"Python {sys.version.split()[0]} has no re._parser"
    assert next(iter(inspect.signature(parser.parse).parameters)) == "str"
    with pytest.raises(re.error):
        parser.parse("(")


@given(st.text(alphabet="a[]()-^?+*{}1,|\\u0N:\u0100z", max_size=12))
def test_a_pattern_is_malformed_if_python_cannot_compile_it(pattern: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        try:
            re.compile(pattern)
            malformed = False
        except re.error:
            malformed = True
    try:
        grammar(pattern)
        refused = None
    except GatewayError as error:
        refused = error.kind
    assert refused is Kind.UNSUPPORTED or (refused is Kind.BAD_REQUEST) is malformed
