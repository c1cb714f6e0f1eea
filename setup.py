"""Builds what is in C, which is optional: without Cython or a C compiler all else is built, and a line says so. Writes
which commit it was built from.

Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import os
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError, CCompilerError

ROOT = Path(__file__).resolve().parent
WITHOUT = "dragoman: built without its native relay (docs/deploy.md): "
SOURCES = ("gateway/native/relay.pyx", "gateway/wire/_scan.pyx")
BUILD = Path("gateway/cli/build.txt")
LIMITED = {
    "Py_LIMITED_API": "0x030b0000",
    # cpython.bytes has the macros alone, and CPython's limited interface the functions alone.
    "PyBytes_AS_STRING": "PyBytes_AsString",
    "PyBytes_GET_SIZE": "PyBytes_Size",
}
"""Macros of a wheel for Python 3.11 and every later one (`bdist_wheel --py-limited-api=cp311`)."""


class BuildAll(build_ext):
    """Cython's C goes beside the objects, not beside its source."""

    def finalize_options(self) -> None:
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        for ext in self.distribution.ext_modules if wheel and wheel.py_limited_api else ():
            ext.py_limited_api = True
            ext.define_macros = list(LIMITED.items())
        super().finalize_options()

    def build_extension(self, ext: Extension) -> None:
        self.cython_c_in_temp = True
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError) as error:
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
            if ext is self.extensions[0]:  # one line for all of them
                print(f"{WITHOUT}{error}")


class BuildPython(build_py):
    """`dragoman --version` reads the note; a checkout, which changes, has none."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            note_build(Path(self.build_lib))


class SourceArchive(sdist):
    """The archive has no git: what is built from it reads the commit from the note."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        note_build(Path(base_dir))


def note_build(folder: Path) -> None:
    """Writes the commit and the day (UTC) to `folder`, unless this source has a note. SOURCE_COMMIT names the commit
    where there is no git, and SOURCE_DATE_EPOCH the time (reproducible-builds.org/docs/source-date-epoch)."""
    if (ROOT / BUILD).exists():
        return
    day = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    (folder / BUILD).write_text(f"commit {os.environ.get('SOURCE_COMMIT') or commit_of(ROOT)}, built {day}\n")


def commit_of(root: Path) -> str:
    """The checked out commit, with `-dirty` if tracked files differ from it; `unknown` outside a checkout."""
    if not (root / ".git").exists():  # a folder inside another repository is not of it
        return "unknown"
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if find_spec("Cython") is None:
    print(f"{WITHOUT}Cython is not installed")
PARTS = [Extension(source.removesuffix(".pyx").replace("/", "."), [source], optional=True) for source in SOURCES]
setup(
    ext_modules=PARTS if find_spec("Cython") else [],
    cmdclass={"build_ext": BuildAll, "build_py": BuildPython, "sdist": SourceArchive},
)
