"""Words by which engines report that a model's chat template refuses a request, or that a model cannot read it.

Most engines cannot tell an error of the template from one of their own, and answer 500; mlx-lm answers 404. The rows
below are the only place that knows their words. Each has an example in `tests/unit/wire/test_chat_templates.py`, with
its source.
"""

from __future__ import annotations

import re

_MOST_TEXT = 4000
"""Longer texts are not searched further: a template may put the client's own messages into its complaint."""
_LONGEST = 1000
"""Characters of a cause."""
STATUSES = frozenset({400, 404, 422, 500})

_KNOWN = (
    r"(?:After the optional system message, c|C)onversation roles must alternate",
    r"System (?:role not supported|message must be at the beginning|message cannot contain)",
    r"A system message is required",
    r"No user query found in messages",
    r"Only user(?:, | and )(?:assistant|tool)",
    r"Unexpected (?:message role|item type in content|content type)",
    r"Message has tool role, but there was no previous assistant message",
    r"Cannot (?:pass both content and thinking|put tools in the first user message)",
    r"This model only supports single tool-calls",
    r"Not the same number of function calls and responses",
    r"Tool call IDs should be alphanumeric strings",
)
"""The beginnings of complaints in templates of Llama, Gemma, Mistral, Qwen 3.5 and gpt-oss, for engines that put no
words of their own before them."""

ROWS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("llama.cpp, Ollama with it", re.compile(r"Jinja Exception: (?P<why>.+?)(?:\n|\\n|\",\"|$)")),
    ("llama.cpp", re.compile(r"While executing .*\nError: (?P<why>[^\n]+)", re.DOTALL)),
    # The place at which its older interpreter stopped stands behind the cause.
    ("llama.cpp before 2026", re.compile(r"^(?P<why>[^\n]+?) at row \d+, column \d+:\n")),
    (
        "LM Studio",
        re.compile(r"^Error rendering prompt with jinja template: (?:\"?Error: |\")?(?P<why>[^\n]+?)(?:\"\.)?(?:\n|$)"),
    ),
    ("oMLX, Rapid-MLX", re.compile(r"^Chat template error: (?P<why>[^\n]+)")),
    (
        "mistral.rs, TGI",
        re.compile(
            r"^(?:Template error: )?(?:invalid operation: )?(?P<why>[^\n]+?) \(in (?:chat_template|<string>):\d+\)"
        ),
    ),
    (
        "SGLang before 0.5.7, mlx-lm, llama-cpp-python",
        re.compile(rf"^(?:Internal server error: )?(?P<why>(?:{'|'.join(_KNOWN)})[^\n]*)"),
    ),
    ("llama.cpp, messages", re.compile(r"^(?P<all>Failed to parse messages: [^\n]+?)(?:; messages = |$)")),
    ("llama.cpp, input", re.compile(r"(?P<all>^(?:image|audio|video) input is not supported)")),
)
"""(source, pattern): `why` is the template's own complaint, `all` is a whole one of the engine's."""


def complaint(text: str) -> str | None:
    """The cause, in at most some 1000 characters, in a text that says so; None for any other text."""
    text = text[:_MOST_TEXT]
    for _, row in ROWS:
        found = row.search(text)
        if found is not None:
            cause = found[1][:_LONGEST]
            return f"the model's chat template refuses the request: {cause}" if "why" in row.groupindex else cause
    return None
