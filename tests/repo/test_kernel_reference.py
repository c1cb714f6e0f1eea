"""The reference that `make kernel` prints has every module of the kernel, and every public name has a docstring."""

from __future__ import annotations

import re

from scripts.kernel import KERNEL, files, reference


def test_the_map_names_every_module_of_the_kernel() -> None:
    assert sorted(files()) == sorted(path.name for path in KERNEL.glob("*.py") if path.name != "__init__.py")


def test_every_public_class_and_function_has_its_purpose() -> None:
    page = reference()
    assert re.findall(r"^### `(.+)`\n\n#", page, re.MULTILINE) == []
    assert "### `class Call" in page
