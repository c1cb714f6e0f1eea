"""Files that are opened in a thread: none stays open that nobody waits for any more."""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import threading
from functools import partial
from pathlib import Path

import pytest

import gateway.features.batches
from gateway.features.batches import storage
from gateway.features.batches.storage import Storage, opened

OPENING = {
    name
    for name, method in inspect.getmembers(Storage, inspect.isfunction)
    if method.__annotations__.get("return") in ("Sink", "BinaryIO")
}


class Opened(io.BytesIO):
    """Notes when it was closed, and in which thread."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = threading.Event()
        self.by = ""

    def close(self) -> None:
        self.by = threading.current_thread().name
        super().close()
        self.gone.set()


@pytest.mark.parametrize("how", ["while it is opened", "once it is open", "before"])
async def test_a_file_is_closed_if_nobody_waits_for_it_any_more(how: str) -> None:
    file, began, may_end = Opened(), threading.Event(), threading.Event()

    def open_() -> Opened:
        began.set()
        may_end.wait(60)
        return file

    # Its threads are all taken.
    full = [storage._THREADS.submit(may_end.wait, 60) for _ in range(16 if how == "before" else 0)]
    task = asyncio.create_task(opened(open_))
    await asyncio.sleep(0)
    if how != "before":
        await asyncio.to_thread(began.wait, 60)
    if how == "once it is open":
        may_end.set()
        storage._THREADS.submit(int).result()  # the loop has not heard of it yet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    for one in full:
        one.result()
    if how == "before":
        assert not began.is_set()
        return
    assert await asyncio.to_thread(file.gone.wait, 60)
    assert file.by.startswith("batches"), "a store that hangs would hold the event loop"


async def test_what_is_undone_is_what_was_said() -> None:
    undone = list[Opened]()
    began, may_end, over = threading.Event(), threading.Event(), threading.Event()

    def open_() -> Opened:
        began.set()
        may_end.wait(60)
        return Opened()

    def undo(file: Opened) -> None:
        undone.append(file)
        over.set()

    task = asyncio.create_task(opened(open_, undo))
    await asyncio.to_thread(began.wait, 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    may_end.set()
    assert await asyncio.to_thread(over.wait, 60)
    assert [file.closed for file in undone] == [False]


async def test_a_file_that_cannot_be_opened_raises() -> None:
    with pytest.raises(FileNotFoundError):
        await opened(partial(open, "/nowhere/at/all"))


def test_every_file_of_the_room_is_opened_so() -> None:
    assert {"open", "begin", "append_to"} == OPENING
    found = []
    for path in Path(gateway.features.batches.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "aside":
                called = node.args[0]
                if isinstance(called, ast.Attribute) and called.attr in OPENING:
                    found.append(f"{path.name}:{node.lineno}")
    assert found == []
