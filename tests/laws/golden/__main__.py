"""`python -m tests.laws.golden [FILE or DIALECT ...]` plays transcripts and writes anew what the gateway makes of
them."""

from __future__ import annotations

import sys

from tests.laws.golden.replay import Stage
from tests.laws.golden.transcript import dump, files, load


def main(only: list[str]) -> None:
    with Stage() as stage:
        for path in files():
            if only and not {path.name, path.stem, path.parent.name, str(path)} & set(only):
                continue
            before = path.read_bytes()
            transcript = load(path)
            transcript.made = stage.play(transcript).made()
            dump(path, transcript)
            if path.read_bytes() != before:
                print(f"rewrote {path.parent.name}/{path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
