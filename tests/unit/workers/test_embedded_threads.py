"""How many threads the embedded worker computes with, where nobody says it: made-up machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from workers.embedded.threads import default_threads, usable

FILE = "other.gguf"


def machine(root: Path, siblings: int = 1, files: Mapping[str, str] | None = None) -> Path:
    """Folders like `/sys` and `/proc` of a machine with `siblings` CPUs a core. `files`: text by path, with `__` for
    a slash."""
    for cpu in range(8):
        place = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        place.mkdir(parents=True)
        first = cpu - cpu % siblings
        place.joinpath("thread_siblings_list").write_text(f"{first}-{first + siblings - 1}\n")
    for name, text in (files or {}).items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_small_model_has_one_thread(tmp_path: Path) -> None:
    assert default_threads(None, range(8), machine(tmp_path)) == 1


@pytest.mark.parametrize(
    ("siblings", "cpus", "threads"),
    [
        (1, range(8), 7),
        (2, range(8), 3),  # two CPUs a core
        (1, {3}, 1),  # affinity: taskset -c 3
        (1, {1, 5, 6}, 2),
        (2, {0, 1}, 1),  # both CPUs of one core
        (2, {0, 2, 4}, 2),
    ],
)
def test_a_model_file_has_the_usable_cores_less_one(
    siblings: int, cpus: set[int], threads: int, tmp_path: Path
) -> None:
    assert default_threads(FILE, cpus, machine(tmp_path, siblings)) == threads


V1 = "9:memory:/a\n2:cpuacct:/\n1:{}:/{}\n0::/\n"


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu_dot_max": "max 100000\n"}, 7),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu_dot_max": "400000 100000\n"}, 3),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu_dot_max": "50000 100000\n"}, 1),
        # The limit of a folder above, and of one that the container cannot see by its name.
        (
            {
                "proc__self__cgroup": "0::/pod/main\n",
                "sys__fs__cgroup__pod__main__cpu_dot_max": "600000 100000\n",
                "sys__fs__cgroup__pod__cpu_dot_max": "300000 100000\n",
            },
            2,
        ),
        ({"proc__self__cgroup": "0::/not/here\n", "sys__fs__cgroup__cpu_dot_max": "250000 100000\n"}, 1),
        (
            {
                "proc__self__cgroup": V1.format("cpu", "pod"),
                "sys__fs__cgroup__cpu__pod__cpu_dot_cfs_quota_us": "300000\n",
                "sys__fs__cgroup__cpu__pod__cpu_dot_cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc__self__cgroup": V1.format("cpu,cpuacct", "not/here"),
                "sys__fs__cgroup__cpu,cpuacct__cpu_dot_cfs_quota_us": "500000\n",
                "sys__fs__cgroup__cpu,cpuacct__cpu_dot_cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc__self__cgroup": V1.format("cpu", ""),
                "sys__fs__cgroup__cpu__cpu_dot_cfs_quota_us": "-1\n",
                "sys__fs__cgroup__cpu__cpu_dot_cfs_period_us": "100000\n",
            },
            7,
        ),
        ({"proc__self__cgroup": "nonsense\n", "sys__fs__cgroup__cpu_dot_max": "x y z\n"}, 7),
    ],
)
def test_limits_of_cgroups_count(files: dict[str, str], threads: int, tmp_path: Path) -> None:
    assert default_threads(FILE, range(8), machine(tmp_path, files=files)) == threads


def test_a_machine_that_says_nothing_has_a_core_for_each_cpu(tmp_path: Path) -> None:
    assert default_threads(FILE, range(4), tmp_path) == 3


def test_this_machine() -> None:
    assert 1 <= default_threads(FILE) <= max(1, len(usable()) - 1)
