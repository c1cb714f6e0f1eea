"""The way of a request: the kernel's steps, in the features that wrap them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from gateway.kernel.asking import answer
from gateway.kernel.attempts import ask_worker, ask_workers, retry
from gateway.kernel.call import Call
from gateway.kernel.feature import Attempt, Failure, Feature, Step
from gateway.kernel.reading import read, receive
from gateway.kernel.serving import serve


async def admit(call: Call) -> None:
    """The innermost `admission`: the kernel itself refuses nothing here."""


OWN: Mapping[str, Any] = {
    "request": serve,
    "read": read,
    "receive": receive,
    "admission": admit,
    "answer": answer,
    "workers": ask_workers,
    "attempt": ask_worker,
    "failure": retry,
}
"""The kernel's own steps, by the names of `kernel.feature`."""


class Way:
    """The steps of requests, each in the features that wrap it. The first feature is the outermost one within a step;
    across steps the earlier step comes first.

    headers  what features add to the heads of replies
    """

    __slots__ = (*OWN, "_own", "features", "headers")

    request: Step
    read: Step
    receive: Step
    admission: Step
    answer: Step
    workers: Step
    attempt: Attempt
    failure: Failure

    def __init__(self, features: Sequence[Feature] = (), own: Mapping[str, Any] = OWN) -> None:
        """own: the innermost steps."""
        self.features = tuple(features)
        self._own = own
        self.headers = tuple(one.headers for one in features if one.headers is not None)
        for name, innermost in own.items():

            def wrap(inner: Any, feature: Feature, method: str = f"around_{name}") -> Any:
                return getattr(feature, method)(inner)

            setattr(self, name, reduce(wrap, reversed(self.features), innermost))

    def inside(self, *features: Feature) -> Way:
        """The same way inside more features."""
        return Way((*features, *self.features), self._own)
