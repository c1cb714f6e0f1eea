"""Hooks of mkdocs for `make docs-site`: the navigation is that of docs/README.md, and links to files that are no pages
become the files' names.

Format: https://www.mkdocs.org/user-guide/configuration/#hooks.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
_PAGE = re.compile(r"\]\(([\w/.-]+\.md)(?:#[\w-]*)?\)")


def on_config(config: Any) -> Any:
    """Called once, with mkdocs' configuration."""
    config["nav"] = navigation(Path(config["docs_dir"]))
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called with the text of each page."""
    return inside(markdown, page.file.src_uri)


def navigation(folder: Path) -> list[Any]:
    """README.md, then each of its sections with the pages that it links to, each page once. The other pages of a folder
    follow its README.md."""
    readme = (folder / "README.md").read_text(encoding="utf-8")
    seen = {"README.md"}
    found: list[Any] = ["README.md"]
    head, *parts = re.split(r"^## (.+)\n", readme, flags=re.MULTILINE)
    found += _pages(folder, head, seen)
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        found.append({title: _pages(folder, text, seen)})
    return found


def _pages(folder: Path, text: str, seen: set[str]) -> list[Any]:
    found: list[Any] = []
    for name in _PAGE.findall(text):
        if name in seen or name.startswith("../"):
            continue
        seen.add(name)
        below = folder / name
        group = below.parent if below.name == "README.md" else below.with_suffix("")
        others = sorted(path.relative_to(folder).as_posix() for path in group.glob("*.md") if group.is_dir())
        others = [other for other in others if other not in seen]
        seen.update(others)
        found.append({group.name.capitalize(): [name, *others]} if others else name)
    return found


def inside(markdown: str, page: str) -> str:
    """`markdown` of the page at the path `page`, in which a link that leads out of the folder of the pages is its text
    and the file's name."""

    def named(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        if not target.startswith("../"):
            return link[0]
        name = target.removeprefix("../")
        return f"`{name}`" if link[1] == name else f"{link[1]} (`{name}`)"

    return _LINK.sub(named, markdown)
