"""`python -m tests.chaos.bounded FOLDER MODULE [WORD ...]`: runs a module as `python -m` does, inside of the control
group of that folder."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    (Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
