"""Complaints of chat templates, as engines write them: found, cut to their cause, and told from all else."""

from __future__ import annotations

import json

import pytest

from gateway.wire.chat_templates import ROWS, complaint

FIRST = "System message must be at the beginning."
TAKES_TURNS = "Conversation roles must alternate user/assistant/user/assistant/..."
NO_CALL = "Message has tool role, but there was no previous assistant message with a tool call!"
PLACE = (
    "\n------------\nWhile executing CallExpression at line 85, column 32 in source:\n...first %}↵  {{- raise_excepti"
)
UNPARSED = "Unable to generate parser for this template. Automatic parser generation failed: "
ODD = 'Unsupported content part type: "x"'
BLIND = "image input is not supported"
_LLAMA = f"{PLACE}\n          ^\nError: Jinja Exception: {FIRST}"
_ADVICE = "This is usually an issue with the model's prompt template. You can override it in My Models > settings."
_WRAPPED = json.dumps({"error": {"code": 500, "message": _LLAMA, "type": "server_error"}})

# source -> (what it writes, the cause that the client reads). llama.cpp's are recorded with xllamacpp 2026.10.11549,
# but for those of its older interpreter and of messages that cannot be read, which are those of its issues 11402 and
# 12947. The others are those of issues: Ollama 18241, LM Studio 535 and 842, oMLX 197, mistral.rs 45, SGLang 14748.
TOLD = {
    "llama.cpp": (_LLAMA, FIRST),
    "llama.cpp, without a parser": (f"{UNPARSED}{PLACE}\n ^\nError: {FIRST}", FIRST),
    "llama.cpp, older": (f"{TAKES_TURNS} at row 19, column 27:\n {{%- if x -%}}\n at row 18, column 5:\n", TAKES_TURNS),
    "llama.cpp, messages": (f"Failed to parse messages: {ODD}; messages = [1]", ODD),
    "llama.cpp, input": (f"{BLIND} - hint: if this is unexpected, you may need to provide the mmproj", BLIND),
    "Ollama": (f"500 Internal Server Error: {_WRAPPED}", FIRST),
    "LM Studio": (f'Error rendering prompt with jinja template: "{FIRST}".\n\n{_ADVICE}', FIRST),
    "LM Studio, older": (
        f"Error rendering prompt with jinja template: Error: {TAKES_TURNS}\n    at _0x29a15f (C:\\llmworker.js:77:2)",
        TAKES_TURNS,
    ),
    "oMLX": (f"Chat template error: {FIRST}", FIRST),
    "mistral.rs": (f"invalid operation: {TAKES_TURNS} (in chat_template:1)", TAKES_TURNS),
    "TGI": (f"Template error: invalid operation: {TAKES_TURNS} (in <string>:1)", TAKES_TURNS),
    "SGLang before 0.5.7": (f"Internal server error: {NO_CALL}", NO_CALL),
    "mlx-lm, llama-cpp-python": (FIRST, FIRST),
}
BROKEN = (
    "CUDA error: out of memory",
    "Internal server error: list index out of range",
    "Error: System message queue is full",
    "no chat template error was found",
    "the engine failed to parse messages",
)
"""What says nothing of a template."""
LONG = (
    f"{PLACE}\nError: Jinja Exception: {'x' * 100_000}",
    f"Chat template error: {'x' * 100_000}",
    f"Error rendering prompt with jinja template: {'x ' * 100_000}",
)


@pytest.mark.parametrize("source", TOLD)
def test_a_complaint_is_cut_to_its_cause(source: str) -> None:
    text, cause = TOLD[source]
    found = complaint(text)
    assert found is not None
    assert cause in found
    assert len(found) < len(cause) + 80


def test_each_row_has_an_example() -> None:
    used = {next(place for place, (_, row) in enumerate(ROWS) if row.search(text)) for text, _ in TOLD.values()}
    assert used == set(range(len(ROWS)))


@pytest.mark.parametrize("text", BROKEN)
def test_other_words_are_none(text: str) -> None:
    assert complaint(text) is None
