"""How much memory this process may have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
# A body of ASCII text takes three times its size while it is under way, one with a single character beyond U+FFFF six
# times; the rest is for the process itself and for all that is small.
_SHARE = 10


def room_for_bodies() -> int:
    """Bytes: a tenth of what the process may have, the machine's memory or its control group's limit."""
    return available() // _SHARE


def available(groups: Path = _GROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes; the least that the machine and every control group around the process (Linux, version 1 or 2) allow."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(groups, own)])


def _limits(groups: Path, own: Path) -> Iterator[int]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's: then its own group is what stands at the root.
        inside = Path(path.lstrip("/"))
        for group in (inside, *inside.parents):
            try:
                limit = (root / group / name).read_text().strip()
            except OSError:
                continue
            if limit.isdigit():  # else "max"
                yield int(limit)
