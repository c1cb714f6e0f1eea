"""`python -m tests.acceptance.helm` writes the golden renders anew; `python -m tests.acceptance.helm crds SOURCE FILE`
cuts schemas anew.

SOURCE says where FILE, an operator's CustomResourceDefinition, is from: a name and a version.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.acceptance.helm import crds
from tests.acceptance.helm.test_golden import GOLDEN, SHOWN, shown


def main(words: list[str]) -> int:
    """Exit status 2 for wrong words."""
    match words:
        case []:
            for name in SHOWN:
                (GOLDEN / f"{name}.yaml").write_text(shown(name))
        case ["crds", source, file]:
            print(*crds.write(source, Path(file).read_text()))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


sys.exit(main(sys.argv[1:]))
