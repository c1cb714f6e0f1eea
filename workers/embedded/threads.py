"""How many threads compute: one for the small model; for another, one for each physical core but one.

The threads of one token wait for each other, so a thread that another program has taken the core from delays them all.
One core stays free for the gateway and for whatever else runs here.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

SMALL = 1
"""The threads of the built-in model: 135 M parameters are read from memory faster than several threads can meet."""

_ROOT = Path("/")


def default_threads(given: str | None, cpus: Collection[int] | None = None, root: Path = _ROOT) -> int:
    """The number of threads where `--threads` does not say it. given: the model file, None for the built-in model.

    cpus are the CPUs that this process may use, as the kernel numbers them (its affinity). The limits of its cgroup and
    of those above it count too. root is the folder that holds `sys` and `proc`.
    """
    if given is None:
        return SMALL
    allowed = usable() if cpus is None else cpus
    cores = len({_core(cpu, root) for cpu in allowed})
    return max(1, min([cores, *map(int, _shares(root))]) - 1)


def usable() -> Collection[int]:
    """The CPUs that this process may run on. Systems without affinity have all of them."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _core(cpu: int, root: Path) -> str:
    """Names the physical core of a CPU by the CPUs that share it. Each CPU is a core of its own if the kernel does
    not name them (macOS, some virtual machines)."""
    try:
        return (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _shares(root: Path) -> Iterator[float]:
    """The CPUs that each cgroup of this process may use at once, in both versions of cgroups. A container often sees
    its own cgroup as the root of the tree: the folders above the named one are read for that reason, too.

    Sources: the kernel's admin-guide/cgroup-v2 (`cpu.max`) and scheduler/sched-bwc (`cpu.cfs_quota_us`).
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            trees = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif "cpu" in controllers.split(","):
            trees = [f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/cpu"]
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for tree in dict.fromkeys(trees):
            for folder in (inner, *inner.parents):
                share = _share(root / tree / folder)
                if share is not None:
                    yield share


def _share(folder: Path) -> float | None:
    """The CPUs that a cgroup's folder allows; None if it sets no limit."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return None
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # cgroup v2 writes "max"
        return None
    return share if share > 0 else None  # cgroup v1 writes -1
