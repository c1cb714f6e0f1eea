"""The base URL that a client should have, where its requests come to a path that has nothing for their method.

Clients append the path of their API to a base URL, and documentation differs on whether that ends in `/v1`. So the
version is missing, or is there twice; some users give the URL of an endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

Served = Callable[[str], Collection[str]]
"""The methods that are served at a path; empty for none."""

# The beginnings of paths that clients append, or that a base URL has: `/v1`, `/v1beta`, `/v2`, Ollama's `/api`.
_VERSION = re.compile(r"v\d\w*|api")
_OLLAMA = "/api"
"""Behind it other servers' clients find paths of the same names."""
_SLASHES = re.compile("//+")
# Longer paths are none of a client's with a wrong base URL.
_MOST_BYTES, _MOST_SEGMENTS = 200, 12


def single_slashes(path: str) -> str:
    """`path` with one slash wherever it has several: a base URL that ends in a slash makes them."""
    return _SLASHES.sub("/", path)


class BaseUrls:
    """Finds what a request at an unknown path may have meant. starts: prefix -> the first segments of the paths behind
    it; mains: prefix -> the main path of each API behind it."""

    def __init__(self, served: Served, starts: Mapping[str, Iterable[str]], mains: Mapping[str, Iterable[str]]) -> None:
        self._served = served
        self._bases = {
            prefix: ["", *(f"/{one}" for one in dict.fromkeys(starts[prefix]) if _VERSION.fullmatch(one))]
            for prefix in sorted(starts, key=len, reverse=True)
        }
        self._behind = {
            prefix + base: [prefix + path for path in mains[prefix] if path.startswith(f"{base}/")]
            for prefix, bases in self._bases.items()
            for base in bases
        }

    def advice(self, method: str, path: str) -> str:
        """The rest of the sentence that says that there is nothing at `path` for `method`: the base URL that leads to
        what was meant, or ""."""
        meant = single_slashes(path).rstrip("/")
        if len(meant) > _MOST_BYTES or meant.count("/") > _MOST_SEGMENTS:
            return ""
        other = ""
        behind = [path for path in self._behind.get(meant, ()) if method in self._served(path)]
        # Clients of an API that has a prefix here and none elsewhere, such as TGI's, append the whole path.
        below = next(
            (one for one in reversed(self._bases) if one and method in self._served(one + (meant or "/"))), None
        )
        if behind:
            listed = f"{', '.join(behind[:-1])} or {behind[-1]}" if behind[1:] else behind[0]
            follow = f"; the path of an API must follow, such as {listed} (README.md lists the base URL of each client)"
            return follow if below is None else f"{follow}; for another API{_below(below, meant).replace(';', ',', 1)}"
        for prefix, bases in () if self._served(path) else self._bases.items():
            if not meant.startswith(prefix + "/"):
                continue
            rest = meant[len(prefix) :]
            at = 0
            while at >= 0:
                for index, base in enumerate(bases):
                    methods = self._served(prefix + base + rest[at:])
                    if method in methods:
                        found = _sentence(prefix, rest[:at], base, rest[at:])
                        for more in bases[index + 1 :]:
                            if not more.startswith(base) and method in self._served(also := prefix + more + rest[at:]):
                                found += f"; there is also {also}"
                        if below is not None and base == _OLLAMA and not at:
                            return f"{_below(below, meant)}; for another API{found.replace(';', ',', 1)}"
                        whole = at and prefix and method in self._served(rest)
                        return f'{found}; without "{prefix}", {rest} is that of another API' if whole else found
                    if methods and not other:
                        other = _sentence(prefix, rest[:at], base, rest[at:])
                at = rest.find("/", at + 1)
        return _below(below, meant) if below is not None else other


def _below(prefix: str, meant: str) -> str:
    return f'; it is at {prefix}{meant or "/"}: the base URL of this client must end in "{prefix}"'


def _sentence(prefix: str, removed: str, base: str, rest: str) -> str:
    found = f"; it is at {prefix}{base}{rest}"
    if base:
        instead = f' instead of "{prefix}{removed}"' if removed else ""
        return f'{found}: the base URL of this client must end in "{prefix}{base}"{instead}'
    if removed:
        return f'{found}: "{removed}" must be left out of the base URL of this client'
    return f"{found}, without the slash at the end"
