"""Regular expressions for llama.cpp's grammar engine (llguidance).

When llguidance cannot compile an expression, it generates without a constraint and reports nothing. So the gateway
refuses expressions that it cannot compile, and reports malformed ones as the client's error.
"""

from __future__ import annotations

import re
import warnings

# Not `re.compile`: parsing finds the faults, and compiling takes up to 4 ms for each range beyond Latin-1.
from re import _parser  # type: ignore[attr-defined]  # the parser has no public name

from gateway.core.errors import GatewayError, Kind
from gateway.wire.json import bad_value

LONGEST = 1000
"""The longest pattern, in characters. Parsing it takes Python 3 µs per character at worst, on the event loop."""
MOST_GROUPS = 100
DEEPEST = 20

# Look-arounds, back-references and boundaries. An escaped backslash begins none of them.
_UNCOMPILABLE = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?<?[=!]|\\[1-9bBAzZaGN])")
_UNICODE_CLASS = re.compile(r"\\[pP](?:\{\w+\}|\w)")
_TO_ESCAPE = re.compile(r"\\.|[/\n\r]", re.S)
_ESCAPED = {"/": "\\/", "\n": "\\n", "\r": "\\r"}


def grammar(pattern: str) -> str:
    """The grammar of texts that match `pattern`.

    Raises GatewayError: UNSUPPORTED for a pattern that llguidance cannot compile, BAD_REQUEST for one that is malformed
    or longer than `LONGEST`.
    """
    _refuse_large(pattern)
    if _UNCOMPILABLE.search(pattern):
        raise GatewayError(
            Kind.UNSUPPORTED,
            "'response_format' cannot be executed by the llamacpp worker of this model: its regular expressions have no"
            " look-arounds, back-references or boundaries",
            param="response_format",
        )
    with warnings.catch_warnings(action="ignore"):
        try:
            # Python's syntax is close enough to Rust's to find malformed patterns. It has no Unicode classes.
            _parser.parse(_UNICODE_CLASS.sub("x", pattern))
        except (re.error, RecursionError, OverflowError):
            raise _wrong("is malformed") from None
    escaped = _TO_ESCAPE.sub(lambda found: _ESCAPED.get(found[0], found[0]), pattern)
    return f"%llguidance {{}}\nstart: /{escaped}/"


def _refuse_large(pattern: str) -> None:
    if len(pattern) > LONGEST:
        raise _wrong(f"has more than {LONGEST} characters")
    if pattern.count("(") > MOST_GROUPS:
        raise _wrong(f"has more than {MOST_GROUPS} groups")
    depth = 0
    for letter in pattern:
        depth += (letter == "(") - (letter == ")")
        if depth > DEEPEST:
            raise _wrong(f"has groups nested more than {DEEPEST} deep")


def _wrong(what: str) -> GatewayError:
    return bad_value("response_format", f"the regular expression {what}")
