"""`python -m scripts.release.publish PART...`: runs the commands that `make release` prints for images and chart.

$REGISTRY is the registry with its owner, whose name registries want in small letters. The digests of what was pushed
go to the file that $GITHUB_OUTPUT names, for the workflow's attestations. PyPI takes wheels from the workflow's own
identity, by its own action.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from scripts.release import chart, images
from scripts.release.version import ROOT, version

PARTS = {"images": images, "chart": chart}


def main(parts: Sequence[str]) -> int:
    """Returns the exit status: that of the first command that fails, 2 if a part or the registry is not named."""
    registry = os.environ.get("REGISTRY", "").lower()
    if not parts or not set(parts) <= set(PARTS) or not registry:
        print(f"publish: name parts ({', '.join(PARTS)}), and the registry in $REGISTRY", file=sys.stderr)
        return 2
    for part in parts:
        for line in PARTS[part].publish(version(ROOT)):
            print(line, flush=True)
            words = ["bash", "-euo", "pipefail", "-c", line]
            if status := subprocess.run(words, cwd=ROOT, env={**os.environ, "REGISTRY": registry}).returncode:
                return status
    if output := os.environ.get("GITHUB_OUTPUT"):
        with open(output, "a", encoding="utf-8") as file:
            for path in sorted(ROOT.glob("dist/images/*.digest")):
                file.write(f"{path.stem}={path.read_text()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
