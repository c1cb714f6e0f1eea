"""Rules that several sections share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.config.faults import Found, Path
from gateway.config.kinds import header_fault
from gateway.config.section import Section


def not_both(at: Path, section: Section, name: str) -> Found:
    """A secret comes from NAME_file or from NAME_env of the section at `at`."""
    if getattr(section, f"{name}_file") is not None and getattr(section, f"{name}_env") is not None:
        yield (*at, f"{name}_env"), f"and {name}_file exclude each other"


def header_faults(at: Path, headers: Mapping[str, str]) -> Found:
    """Of headers that are added to requests of our own."""
    lower: set[str] = set()
    for header, value in headers.items():
        wrong = header_fault(header, value) or ("is given twice" if header.lower() in lower else None)
        lower.add(header.lower())
        if wrong:
            yield (*at, header), wrong


def repeated(items: tuple[str, ...]) -> Iterator[int]:
    """The indices of items that stood before."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        if item in seen:
            yield index
        seen.add(item)
