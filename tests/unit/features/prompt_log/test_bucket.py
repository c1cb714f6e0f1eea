"""Lines in a bucket: in objects that only grow by new ones, bounded as files are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.batches import Bucket
from gateway.features.prompt_log.bucket import Objects
from gateway.features.prompt_log.files import Lost
from tests.support.harness import Stack, load_text
from tests.unit.features.batches.s3 import KEY, S3
from tests.unit.features.prompt_log.logged import ALL, lines, post, said
from tests.unit.features.prompt_log.test_files import line

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as running:
        yield running


def options(section: dict[str, Any]) -> Bucket:
    config = load_text(f"models: {{m: {{backend: vllm, workers: ['http://x:1']}}}}\nprompt_log: {section}\n")
    assert config.prompt_log is not None
    assert config.prompt_log.bucket is not None
    return config.prompt_log.bucket


def test_lines_come_to_the_bucket_at_the_latest_when_the_gateway_ends(server: S3, tmp_path: Path) -> None:
    with Stack(config={"prompt_log": server.section(tmp_path, rules=ALL)}) as stack:
        for text in ("one", "two"):
            post(stack, text)
        stack.records()
    (file,) = (tmp_path / "some" / "where").iterdir()
    assert [said(one)[0] for one in lines(file.parent)] == [["one"], ["two"]]
    assert KEY.encode() not in stack.output.getvalue()


def test_objects_are_sent_in_time_and_deleted_by_age_and_size(server: S3, tmp_path: Path) -> None:
    now, place = [1e9], tmp_path / "some" / "where"
    objects = Objects(options(server.section(tmp_path)), 86_400, MIB, lambda: now[0])
    assert objects.write([line("first")]) == objects.tidy() == 0
    now[0] += 60
    assert objects.tidy() == 1
    assert [said(one)[0] for one in lines(place)] == [["first"]]
    sent = 0
    for _ in range(160):
        now[0] += 1
        sent += objects.write([line("x" * 10_000)])
    assert 140 < sent <= 160
    now[0] += 3600
    sent += objects.tidy()
    assert sent == 160
    assert sum(file.stat().st_size for file in place.iterdir()) <= MIB
    now[0] += 86_401
    objects.tidy()
    assert list(place.glob("*")) == []


def test_a_flood_of_lines_stays_in_the_bound(server: S3, tmp_path: Path) -> None:
    now, place = [1e9], tmp_path / "some" / "where"
    objects = Objects(options(server.section(tmp_path)), 7 * 86_400, MIB, lambda: now[0])
    for number in range(400):
        now[0] += 0.01
        objects.write([line(f"{number} " + "x" * 10_000)])
        objects.tidy()
        assert sum(file.stat().st_size for file in place.glob("*")) <= MIB, number
    objects.close()
    numbers = sorted(int(said(one)[0][0].partition(" ")[0]) for one in lines(place))
    assert numbers == list(range(numbers[0], 400)), "the oldest are gone, and they alone"


def test_lines_that_the_bucket_does_not_take_are_counted(server: S3, tmp_path: Path) -> None:
    made = options(server.section(tmp_path))
    away = Objects(
        made.model_copy(update={"name": "not-there"}).holding({n: made.held(n) or "" for n in made.SECRETS}),
        86_400,
        MIB,
    )
    away.write([line(), line()])
    with pytest.raises(Lost) as raised:
        away.close()
    assert raised.value.lines == 2
    assert away.close() == 0
