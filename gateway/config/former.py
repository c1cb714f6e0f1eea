"""Names that dialects had up to 0.9, in the values of a configuration before they are validated. They are read until
the next minor version, with a warning.

`ollama` was the Ollama-style API, which is `ollama_style` now, and is Ollama's own. A configuration is taken to know
that if it has the section `dialects.ollama_style`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.config.faults import Path, Positions

FORMER = {"azure": "azure_inference", "ollama_native": "ollama"}
OLLAMA, OLLAMA_STYLE = "ollama", "ollama_style"
_MOVED = (
    f"is Ollama's own API now, and the Ollama-style API is {OLLAMA_STYLE}; the section dialects.{OLLAMA_STYLE}, which "
    "may be empty, says that this is meant"
)


def rename(values: dict[str, Any], positions: Positions) -> tuple[list[tuple[Path, str]], list[str]]:
    """Gives dialects their names, in `values` and in the paths of `positions`. Returns the faults, and a warning for
    each former name."""
    faults: list[tuple[Path, str]] = []
    changed: dict[Path, str] = {}
    found = values.get("dialects")
    sections: dict[str, Any] = found if isinstance(found, dict) else {}
    for path, name in (*((("dialects", name), name) for name in sections), *_listed(values)):
        if name == OLLAMA and OLLAMA_STYLE not in sections:
            faults.append((path, _MOVED))
        elif path[0] == "dialects" and FORMER.get(name) in sections:
            faults.append((path, f"is the former name of {FORMER[name]}, which is there, too"))
        elif name in FORMER:
            changed[path] = FORMER[name]
    for path, name in changed.items():
        if path[0] == "dialects":
            sections[name] = sections.pop(str(path[1]))
        else:
            key = values["keys"][path[1]]
            key["dialects"] = [FORMER.get(one, one) for one in key["dialects"]]
    for path in [path for path in positions if path[:2] in changed]:
        positions[("dialects", changed[path[:2]], *path[2:])] = positions.pop(path)
    return faults, [f"{'.'.join(map(str, path))}: the dialect is called {name} now" for path, name in changed.items()]


def _listed(values: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """The dialects that keys may speak."""
    keys = values.get("keys")
    for name, key in keys.items() if isinstance(keys, dict) else ():
        names = key.get("dialects") if isinstance(key, dict) else None
        for index, one in enumerate(names if isinstance(names, list) else ()):
            if isinstance(one, str):
                yield ("keys", name, "dialects", index), one
