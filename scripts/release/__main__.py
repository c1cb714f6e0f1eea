"""`python -m scripts.release [--tag TAG] [PART...]`: builds and proves the parts of a release, and prints what to push.

A part is a module with three functions:

build(folder)      writes its artifacts to `folder`
prove(folder)      tries them as a user would; yields a line for each thing proved, raises `NotProved` at a fault
publish(version)   the commands that a maintainer types to publish them
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from scripts.release import chart, images, wheels
from scripts.release.proof import NotProved
from scripts.release.version import DIST, ROOT, faults, version

PARTS = {"wheels": wheels, "images": images, "chart": chart}


def parser() -> argparse.ArgumentParser:
    """The flags."""
    out = argparse.ArgumentParser(prog="python -m scripts.release", description="Rehearses a release.")
    out.add_argument("parts", nargs="*", metavar="PART", help=f"which: {', '.join(PARTS)} (all)")
    out.add_argument("--tag", help="the tag that is to be released; refused if it is not that of the version")
    return out


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 1 if something is not proved, 2 if a part or the tag is wrong."""
    given = parser().parse_args(argv)
    wrong = [f"no part is called {name}: there are {', '.join(PARTS)}" for name in given.parts if name not in PARTS]
    wrong += faults(ROOT, given.tag)
    if wrong:
        print("\n".join(f"release: {fault}" for fault in wrong), file=sys.stderr)
        return 2
    names = given.parts or list(PARTS)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    began, open_ends = time.monotonic(), []
    try:
        for name in names:
            begun = time.monotonic()
            PARTS[name].build(DIST)
            print(f"{name}: built in {time.monotonic() - begun:.0f} s", flush=True)
            begun = time.monotonic()
            for line in PARTS[name].prove(DIST):
                print(f"  {line}", flush=True)
                open_ends += [f"  {line}"] if "NOT PROVED" in line else []
            print(f"{name}: proved in {time.monotonic() - begun:.0f} s", flush=True)
    except (NotProved, subprocess.CalledProcessError) as error:
        print(f"release: {name}: {error}", file=sys.stderr)
        return 1
    now = version(ROOT)
    print(f"\nAll of it took {(time.monotonic() - began) / 60:.0f} minutes.", *open_ends, sep="\n")
    print("\nNothing was published. A maintainer types:\n")
    for line in [f"git tag --sign v{now} --message 'Dragoman {now}'", f"git push origin v{now}"]:
        print(f"  {line}")
    for name in names:
        for line in PARTS[name].publish(now):
            print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
