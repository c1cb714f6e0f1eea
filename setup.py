"""Builds what is in C, which is optional: without Cython or a C compiler all else is built, and a line says so.

Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

WITHOUT = "dragoman: built without its native relay (docs/deploy.md): "
SOURCES = ("gateway/native/relay.pyx", "gateway/wire/_scan.pyx")


class BuildAll(build_ext):
    """Cython's C goes beside the objects, not beside its source."""

    def build_extension(self, ext: Extension) -> None:
        self.cython_c_in_temp = True
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError) as error:
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
            if ext is self.extensions[0]:  # one line for all of them
                print(f"{WITHOUT}{error}")


if find_spec("Cython") is None:
    print(f"{WITHOUT}Cython is not installed")
PARTS = [Extension(source.removesuffix(".pyx").replace("/", "."), [source], optional=True) for source in SOURCES]
setup(ext_modules=PARTS if find_spec("Cython") else [], cmdclass={"build_ext": BuildAll})
