"""Every transcript, replayed whole, byte by byte, and with its worker cut off after every frame."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gateway import backends, dialects
from gateway.wire.openai.media.fields import PATHS as MEDIA
from tests.laws.golden.replay import Played, Stage
from tests.laws.golden.transcript import FOLDER, Message, Transcript, files, load, show_body
from tests.support.sampled import sampled

REWRITE = "if this is meant, run `make golden REWRITE=1` and review the difference"
Count = Callable[[str, object], None]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as running:
        yield running


def named(value: Path | str) -> str:
    return f"{folder(value)}/{value.stem}" if isinstance(value, Path) else value


def folder(path: Path) -> str:
    """The dialect's."""
    return path.parent.name


def streams(path: Path) -> bool:
    """A transcript of a stream that a worker began."""
    answered = load(path).answered
    return answered is not None and answered.first == "200" and len(pieces(answered)) > 1


def pieces(answer: Message) -> list[bytes]:
    """The body cut behind every frame."""
    end = rb"\n" if answer.header(b"content-type").startswith(b"application/") else rb"(?:\r?\n){2}|\r\r"
    return [piece for piece in re.split(rb"(?<=[^\r\n])((?:%b)+)" % end, answer.body) if piece.strip()]


def prefixes(answer: Message) -> list[bytes]:
    """The body up to each of its frames, from nothing to all of it."""
    ends = [0]
    for piece in pieces(answer):
        at = answer.body.index(piece, ends[-1]) + len(piece)
        while answer.body[at : at + 1] in (b"\r", b"\n"):
            at += 1
        ends.append(at)
    return [answer.body[:end] for end in ends]


ANSWERED = [path for path in files() if load(path).answered is not None]
CUT = [(path, ending) for path in files() if streams(path) for ending in ("cut", "")]


@pytest.mark.parametrize("name", dialects.REGISTRY)
def test_a_dialect_has_transcripts(name: str) -> None:
    assert list((FOLDER / name).glob("*.txt")), f"tests/laws/golden/{name}/ has no transcript"


@pytest.mark.parametrize("backend", backends.REGISTRY)
@pytest.mark.parametrize("name", dialects.REGISTRY)
def test_a_dialect_has_a_stream_of_every_kind_of_worker(name: str, backend: str) -> None:
    """One of each operation that streams, told apart by the path that the worker is asked at."""
    found = [load(path) for path in files() if path.parent.name == name and streams(path)]
    paths = {asked_at(one) for one in found if kind(one) == backend} - {*MEDIA.values()}
    wanted = dialects.REGISTRY[name].fields.keys() & {"chat", "complete"}
    if backend == "openai" and name in ("friendli", "tgi"):
        wanted -= {"complete"}  # its replies need token ids
    assert len(paths) == len(wanted), paths


@pytest.mark.parametrize("name", [name for name, made in dialects.REGISTRY.items() if made.fields.keys() & MEDIA])
def test_a_dialect_has_each_operation_of_sound_and_images(name: str) -> None:
    """A reply of each, and a stream of those whose routes may answer with one of events."""
    found = [load(path) for path in files() if path.parent.name == name]
    answered = [one for one in found if one.answered is not None and one.answered.first == "200"]
    assert {asked_at(one) for one in answered} >= {*MEDIA.values()}
    streamed = {asked_at(load(path)) for path in files() if path.parent.name == name and streams(path)}
    examples = dialects.REGISTRY[name].examples
    assert streamed >= {MEDIA[work] for work in MEDIA if examples[work][0].streams == "asked"}


def asked_at(transcript: Transcript) -> str:
    """The path that the worker is asked at; "" if none is asked."""
    return transcript.made.get("worker >", " ").split(" ", 1)[1].partition("\n")[0]


def kind(transcript: Transcript) -> str:
    return str(transcript.model.get("backend", "vllm"))


def test_no_transcript_is_of_a_dialect_that_does_not_exist() -> None:
    assert {path.parent.name for path in files()} <= set(dialects.REGISTRY)


@pytest.mark.parametrize("path", files(), ids=named)
def test_whole(stage: Stage, path: Path, record_property: Count) -> None:
    transcript = load(path)
    assert transcript.about, "say what it shows"
    assert stage.play(transcript).made() == transcript.made, REWRITE
    record_property("cases", 1)


@pytest.mark.parametrize("path", sampled(ANSWERED, 4, folder), ids=named)
def test_byte_by_byte(stage: Stage, path: Path, record_property: Count) -> None:
    """However a worker's bytes are cut into blocks, the client gets the same ones."""
    transcript = load(path)
    whole = stage.play(transcript)
    for size in (1, 2, 7):
        assert stage.play(transcript, size=size).made() == whole.made(), size
    record_property("cases", 3)


@pytest.mark.parametrize(("path", "ending"), sampled(CUT, 4, lambda case: (folder(case[0]), case[1])), ids=named)
def test_cut_after_every_frame(stage: Stage, path: Path, ending: str, record_property: Count) -> None:
    """The client has what came before the cut, then is told; never does it look complete."""
    transcript = load(path)
    whole = stage.play(transcript)
    ok = whole.record.outcome == "ok"
    assert transcript.answered is not None
    cuts = prefixes(transcript.answered)
    for place, body in enumerate(cuts[:-1]):
        cut = stage.play(transcript, msgspec.structs.replace(transcript.answered, body=body, ending=ending))
        assert_told(cut, whole, ok, f"after {place} frames")
    if ok:
        # Once the terminal mark is there, nothing that follows matters.
        answered = msgspec.structs.replace(transcript.answered, body=cuts[-1], ending=ending)
        assert stage.play(transcript, answered).made() == whole.made()
    record_property("cases", len(cuts))


def assert_told(cut: Played, whole: Played, ok: bool, where: str) -> None:
    assert cut.record.outcome in ("failed", "refused"), where
    assert cut.record.code, where
    if cut.got.first != "200":
        assert int(cut.got.first) >= 400, where
        assert not cut.got.ending, where
        return
    assert cut.record.usage is not None or cut.record.time_to_first_token_ms is None, where  # nothing was said
    before, after = list(show_body(whole.got)), list(show_body(cut.got))
    shared = next(
        (place for place, (one, other) in enumerate(zip(before, after, strict=False)) if one != other),
        min(len(before), len(after)),
    )
    rest = "\n".join(after[shared:])
    if ok:
        assert re.search("error|exception", rest, re.IGNORECASE), f"{where}: {rest!r}"
        terminal = next(line for line in reversed(before) if len(line) > 2)
        if terminal in after:
            assert "error" in rest[: rest.index(terminal)], f"{where}: the terminal mark is there, and no error before"
            assert not cut.got.ending, where
        else:
            assert cut.got.ending == "cut" or "error" in rest or "exception" in rest, where


@pytest.mark.parametrize("path", files(), ids=named)
def test_nothing_behind_us_shows(path: Path) -> None:
    """Names and addresses of workers are not the client's business."""
    text = load(path).made["client <"]
    assert "worker:8000" not in text
    assert "<html" not in text
    assert not re.search(r'"model": ?"sim"', text)


def test_a_transcript_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("what\nmodel: {backend: tgi}\n\nclient >\nGET /v1/models\na: b: c\n\n| x\n|\n| y ␍\n- z\n")
    found = load(path)
    assert isinstance(found, Transcript)
    assert (found.about, found.model, found.answered) == ("what", {"backend": "tgi"}, None)
    assert found.asked == Message("GET /v1/models", [(b"a", b"b: c")], b"x\n\ny \r\nz")
    path.write_text("client >\nGET /\n\nclient >\nGET /\n")
    with pytest.raises(ValueError, match="twice"):
        load(path)
    path.write_text("usage\nnone\n")
    with pytest.raises(ValueError, match="no section 'client >'"):
        load(path)
