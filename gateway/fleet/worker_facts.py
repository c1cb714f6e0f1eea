"""Asks a worker that becomes ready about itself: its abilities, its names for models, or why it can serve nothing."""

from __future__ import annotations

from urllib.parse import urlsplit

from gateway.core.errors import GatewayError
from gateway.core.failures import Cause
from gateway.core.http import Response
from gateway.core.ports import Facts
from gateway.fleet.clients import Clients
from gateway.fleet.model_fleet import ModelFleet
from gateway.fleet.worker import Worker


async def ask(clients: Clients, fleet: ModelFleet, worker: Worker) -> Facts | Cause | None:
    """The facts of `worker`, or the cause why no request can succeed there; None if it reports nothing.

    Sets the names that the worker serves. A model without `upstream_model` takes the one name that its worker serves;
    if there are several and none fits, that is the cause.
    """
    path, backend = fleet.facts_path, fleet.backend
    worker.lacking, worker.words = frozenset(), None
    if path is None:
        return None
    try:
        status, body = await clients.answer(fleet.name, worker.address, path, fleet.headers)
        if status // 100 != 2:
            return await _obstacle(clients, fleet, worker, Response(status, [], body))
        wanted = fleet.declared.upstream_model
        facts = backend.facts(body, wanted)
        worker.lacking = await _lacking(clients, fleet, worker.address)
        worker.serves, worker.served_as = facts.others, None
        if not facts.others or fleet.options.upstream_model is not None:
            return facts
        if len(facts.others) > 1:
            return Cause.UNKNOWN_MODEL
        worker.served_as, worker.serves = facts.others[0], ()
        return backend.facts(body, facts.others[0])
    except (GatewayError, TimeoutError):
        return None


async def _lacking(clients: Clients, fleet: ModelFleet, address: str) -> frozenset[str]:
    """The features that the worker's model lacks, by the paths that the worker has: a GET is answered 405 where there
    is one for POST, and 404 where there is none. A server that answers 404 for all of them tells nothing."""
    asked = fleet.backend.tasks
    found = {task: (await clients.answer(fleet.name, address, asked[task], fleet.headers))[0] for task in asked}
    return frozenset(task for task, status in found.items() if status == 404 and 405 in found.values())


async def _obstacle(clients: Clients, fleet: ModelFleet, worker: Worker, response: Response) -> Cause | None:
    """The cause, if an answer other than 2xx shows that the key or a proxy's password is refused, or that the path in
    the address is wrong. Many servers have no such list, or show it to some keys only: that is none."""
    error = fleet.backend.fault(response)
    cause = error.cause
    if cause in (Cause.KEY_REFUSED, Cause.PROXY_KEY_REFUSED):
        worker.words = error.detail
        return cause
    url = urlsplit(worker.address)
    if cause is Cause.WRONG_PATH and url.path and fleet.facts_path is not None:
        root = f"{url.scheme}://{url.netloc}"
        status, body = await clients.answer(fleet.name, root, fleet.facts_path, fleet.headers)
        if status == 200:
            fleet.backend.facts(body, fleet.declared.upstream_model)  # raises GatewayError for anything else
            return cause
    return None
