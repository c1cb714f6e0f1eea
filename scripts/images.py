"""Builds the images of deploy/: `make images`.

    python scripts/images.py [--builder docker] [--tag TAG] [--pip-config FILE] [gateway embedded worker] [-- WORDS]

The images are dragoman/gateway, dragoman/embedded (based on the gateway's) and dragoman/worker (based on vLLM's).
Arguments after `--` go to the builder. This script needs only Python and a builder: docker, podman or buildah.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("gateway", "embedded", "worker")
BUILDERS = ("docker", "podman", "buildah")


def parser() -> argparse.ArgumentParser:
    """The flags."""
    out = argparse.ArgumentParser(prog="scripts/images.py", description="Builds the images of deploy/.")
    add = out.add_argument
    add("names", nargs="*", metavar="NAME", help=f"which: {', '.join(NAMES)} (gateway and embedded)")
    add("--builder", help=f"command that builds ({', '.join(BUILDERS)}: the first that is there)")
    add("--tag", help="tag of the images (the version in pyproject.toml)")
    add("--base", help="image with Python for the gateway, instead of the public one")
    add("--engine", help="image with vLLM for the worker, instead of the published one")
    add("--pip-config", metavar="FILE", help="pip.conf for the build; it is in no layer")
    return out


def command(name: str, given: argparse.Namespace, builder: str, tag: str, words: list[str]) -> list[str]:
    """How image `name` is built. Raises ValueError for another name."""
    if name not in NAMES:
        raise ValueError(f"no image is called {name}: there are {', '.join(NAMES)}")
    base = {"gateway": given.base, "embedded": f"dragoman/gateway:{tag}", "worker": given.engine}[name]
    made = [*shlex.split(builder), "build", "--file", f"deploy/{name}.Containerfile", "--tag", f"dragoman/{name}:{tag}"]
    made += ["--build-arg", f"BASE={base}"] if base else []
    made += ["--build-arg", f"SOURCE_COMMIT={now}"] if (now := commit()) and name != "embedded" else []
    made += ["--secret", f"id=pip,src={Path(given.pip_config).resolve()}"] if given.pip_config else []
    return [*made, *words, "."]


def commit() -> str:
    """The checked out commit for `dragoman --version`, as setup.py names it: the context has no git. "" outside git."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def main(argv: list[str]) -> int:
    """Returns the exit status: that of the builder when it fails, 2 when none can be started."""
    words: list[str] = []
    if "--" in argv:
        argv, words = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    given = parser().parse_args(argv)
    builder = given.builder or next((one for one in BUILDERS if shutil.which(one)), None)
    tag = given.tag or tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        if builder is None:
            raise ValueError(f"nothing here builds images: install one of {', '.join(BUILDERS)}")
        commands = [command(name, given, builder, tag, words) for name in given.names or NAMES[:2]]
    except ValueError as error:
        print(f"images: {error}", file=sys.stderr)
        return 2
    for one in commands:
        print(shlex.join(one), flush=True)
        try:
            status = subprocess.run(one, cwd=ROOT).returncode
        except OSError as error:
            print(f"images: cannot run {one[0]}: {error.strerror}", file=sys.stderr)
            return 2
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
