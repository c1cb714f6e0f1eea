"""Optional features, a folder each. `gateway/app/features.py` has their names in their order, and builds those that are
there: a folder can be deleted, and its options are unknown options then (`Section.FEATURES` in `gateway/config`).

The `__init__` of a folder has `build(parts) -> Built | None`, which builds the feature for one configuration, or
returns None if it is off. A folder that serves clients at paths of its own also has `client_routes(config) -> Routes`,
which names them without building anything; one that has the paths of others answer at further paths, too, has
`path_alias(config)`, and one that knows what was meant by paths that are not served has `path_advice(config)`, see
`app.features.path_aliases` and `path_advices`; one that writes to Redis has `key_kinds()`, which names its keys.
No feature imports another one; what they have from each other goes through `Offers`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers, Request, Route
from gateway.core.messages import Op
from gateway.core.ports import (
    Backend,
    CountedConnection,
    Dialect,
    Pool,
    RequestTrace,
    ResponseStore,
    SocketSession,
    WorkerHandle,
)

if TYPE_CHECKING:
    from ssl import SSLContext

    from gateway.auth import Absent, Admin, JwtVerifier, KnownKeys, Principal
    from gateway.auth.key_mirror import KeyMirror
    from gateway.config import Available, Config
    from gateway.config import Model as ModelOptions
    from gateway.core.byte_budget import Held
    from gateway.fleet.fleets import Fleets
    from gateway.fleet.kv_events import Listening
    from gateway.kernel import ActiveRequests, Application, Endpoint, Runtime, ServedModel
    from gateway.kernel.call import Call
    from gateway.kernel.client import Scope
    from gateway.kernel.delivery import Delivery
    from gateway.kernel.feature import Feature
    from gateway.kernel.outgoing import Finish
    from gateway.kernel.visit import Visit
    from gateway.observe.ledger import Ledger
    from gateway.observe.log import Log
    from gateway.observe.metrics import Metrics
    from gateway.observe.process_group import ProcessGroup
    from gateway.ratelimit import HttpRateLimiter, Limits, SubjectLimiter
    from gateway.ratelimit.addresses import Networks


class Deaths(Protocol):
    """The requests that workers died of."""

    @property
    def held(self) -> Mapping[bytes, float]: ...
    @property
    def noted(self) -> Mapping[bytes, object]: ...

    def looks_deadly(self, error: GatewayError) -> bool: ...
    def suspect(self, model: str, worker: WorkerHandle, request: Request) -> object: ...
    async def refuse_held(self, request: Request) -> None: ...
    async def clear(self, request: Request) -> None: ...


class WebSockets(Protocol):
    """The web sockets of a process, which are `len`.

    endpoints  the POST that reads the messages, by path
    over       what each message gets that is not under way yet, once the gateway waits for none any more
    """

    endpoints: Mapping[str, Endpoint]
    over: GatewayError | None

    def __len__(self) -> int: ...
    def opens(self, scope: Scope, connection: CountedConnection) -> tuple[SocketSession, Held] | None:
        """As `core.ports.OpensSockets`."""


class AllBatches(Protocol):
    """The batches of all tenants. Each method raises GatewayError if Redis does not answer. wanted: whether those of
    this team are. A batch is its members by name, with times in Unix seconds."""

    @property
    def running(self) -> int:
        """How many this process runs."""

    async def page(
        self, wanted: Callable[[str | None], bool], status: str | None, most: int, after: str | None
    ) -> tuple[list[dict[str, Any]], str | None]: ...
    async def batch(self, id_: str, wanted: Callable[[str | None], bool]) -> dict[str, Any] | None: ...
    async def cancel(self, id_: str, by: str) -> None: ...


class AllRequests(Protocol):
    """The requests under way at the processes that share an address."""

    async def teams(self, id_: str) -> Collection[str | None]:
        """The teams of those that have this id. Clients may give the id, and give one twice."""

    async def end(self, id_: str, teams: Collection[str | None]) -> None:
        """Ends those that have this id and are of one of `teams`: their clients get an error."""


SendEvent = Callable[[str, dict[str, object]], None]
Police = Callable[[Op, "Principal", Headers], "Finish | None"]
"""Changes a request of a caller, with these headers, as request policies have it, and returns the change of what a
worker gets of it. Raises GatewayError for what a policy refuses."""
Routes = Mapping[str, Sequence[Route]]
"""By the name of their dialect."""


class Deliveries(dict[type, "Delivery"]):
    """How replies pass, by the class of the operation. An operation that is missing is refused."""

    def __missing__(self, operation: type) -> Delivery:
        raise GatewayError(Kind.UNSUPPORTED, "this gateway does not carry such replies")


async def _refuse_form(call: Call) -> None:
    raise GatewayError(Kind.MEDIA_TYPE, "this gateway takes no uploads")


@dataclass
class Offers:
    """Values that the features of one configuration have for the kernel, the application, and features behind them.
    Each has the value that is right without the feature.

    deliveries      how replies pass, for operations beside the kernel's own
    receive_form    reads the body of an upload
    response_store  what clients may refer to later
    limiter         the limits of requests
    resumable       whether another worker can go on now with the stream of a visit
    leave_worker    has the requests at a worker leave it; returns how many do
    deaths          the requests that workers died of
    connected       counts a connection for who uses it; raises GatewayError if that caller may have no more
    loop_lag        called ten times a second with the lag of the event loop, in seconds
    prioritized     takes the priorities that requests may have
    listening       follows what engines cache
    sockets         the web sockets of this process
    batches         the batches of all tenants
    admin           the admin API for a caller who is known; None where it is not served
    requests        those under way at this process and at the others that share its address
    answers         what answers the other processes that share this one's address, by the first word of a question;
                    takes the rest of it
    prompts_logged  the requests whose prompts and replies are logged, for people; takes `KeyTable.logged`
    trace_of        returns the trace of a request; None if it is not recorded
    police          the policies on requests for the model of this name; None if there are none
    """

    deliveries: Deliveries = field(default_factory=Deliveries)
    receive_form: Callable[[Call], Awaitable[None]] = _refuse_form
    response_store: ResponseStore | None = None
    limiter: HttpRateLimiter | None = None
    resumable: Callable[[Call, Visit], bool] = lambda call, visit: False
    leave_worker: Callable[[ActiveRequests, WorkerHandle, GatewayError], int] = lambda active, worker, error: 0
    deaths: Deaths | None = None
    connected: Callable[[Principal, CountedConnection], None] = lambda principal, connection: None
    loop_lag: Callable[[float], None] = lambda seconds: None
    prioritized: Callable[[Iterable[int]], None] = lambda priorities: None
    listening: Listening | None = None
    sockets: WebSockets | None = None
    batches: AllBatches | None = None
    admin: Callable[[Admin], Application] | None = None
    requests: AllRequests | None = None
    answers: dict[bytes, Callable[[bytes], Awaitable[bytes]]] = field(default_factory=dict)
    prompts_logged: Callable[[Mapping[str, float]], Sequence[str]] = lambda logged: ()
    trace_of: Callable[[Call], RequestTrace | None] = lambda call: None
    police: Callable[[str], Police | None] = lambda model: None


class InForce(Protocol):
    """The configuration in force, for services that call the gateway themselves."""

    def endpoint(self, dialect: str, path: str) -> Endpoint | None:
        """The endpoint of a POST to `path`, which has no prefix; None if the dialect is off or has none there."""

    def caller(self, who: Absent, dialect: str) -> Principal:
        """A caller who is known from before, as keys are now. Raises GatewayError if it may not call any more."""


@dataclass(frozen=True)
class Watched:
    """The gateway as it is now, for its operators.

    starting     it is not ready yet
    unread       the sources that it has not read since it started
    limiter      None without limits
    ledger       the sums of spending; None if none are kept
    admin        as the offer of this name
    prompts_logged, police  as the offers of these names
    dialects     makes them; by the path, in Starlette's syntax, of each of their routes with a body: the dialect there,
                 and the route's name
    team_of      returns the team of the key of this name; None if it has none, or is not in force
    application  makes the gateway's own ASGI application on another runtime
    """

    version: str
    draining: bool
    starting: bool
    unread: Sequence[str]
    config: Config
    fleets: Fleets
    runtime: Runtime
    limiter: SubjectLimiter | None
    ledger: Ledger | None
    admin: Callable[[Admin], Application] | None
    prompts_logged: Sequence[str]
    police: Callable[[str], Police | None]
    dialects: Callable[[], Mapping[str, tuple[Dialect, str]]]
    team_of: Callable[[str], str | None]
    application: Callable[[Runtime], Application]


@dataclass(frozen=True)
class Parts:
    """The objects that features are built with.

    available  what the gateway can do, for checks of options
    tokens     reads those of an identity provider; None without one
    keys       those of the store; None without one
    limits     the rules of the configuration
    trust      the authorities that workers are trusted by, by the `ca_file` of their model; those of the web by None
    proxies    the networks whose headers are believed
    estimate   tokens of a prompt
    models     by every name that clients may use; filled later
    routes     returns what finds the template of a path, "" for one that is not served
    death_of   probes a worker of a model now, and returns what names its death, None if it lives
    send_event has the webhook of budgets send an event, by name, with its facts
    in_force   returns the configuration in force
    watched    returns the gateway as it is now
    group      the processes that share this one's address; None if it is alone
    earlier_services  of the configuration in force, by the feature's name. A service keeps nothing of the `Parts` that
               belongs to one configuration
    """

    config: Config
    log: Log
    metrics: Metrics
    available: Available
    known_keys: KnownKeys
    tokens: JwtVerifier | None
    keys: KeyMirror | None
    limits: Limits
    trust: Mapping[str | None, SSLContext]
    proxies: Networks
    estimate: Callable[[Op], int]
    models: Mapping[str, ServedModel]
    routes: Callable[[], Callable[[str], str]]
    death_of: Callable[[str, WorkerHandle], Awaitable[object | None]]
    send_event: SendEvent
    in_force: Callable[[], InForce]
    watched: Callable[[], Watched]
    group: ProcessGroup | None
    earlier_services: Mapping[str, Any]
    offers: Offers = field(default_factory=Offers)


@dataclass(frozen=True)
class OneModel:
    """The model that a feature is built for. prefill: of the workers that compute prompts for it, if there are some."""

    name: str
    options: ModelOptions
    backend: Backend
    prefill: Pool | None


async def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Built:
    """A feature of one configuration.

    layers       around the requests of all models, the outermost first: by these objects `Call.notes` are found
    further_layers  layers with positions of their own, by the names that they have there
    of_model     the layer around the requests of one model, None if that model goes without
    endpoint     makes the endpoint of the paths of a dialect that `client_routes` names
    operations   endpoints of the admin address, by path; by one such as `/admin/` that of all paths below it
    service      what outlives the configuration: the next one has it in `Parts.earlier_services`. It is closed, if it
                 has a `close`, when no configuration has it any more
    start        of the service
    take_effect  the configuration is in force from now on
    drain        the process ends soon: nothing new is begun
    close        of what belongs to this configuration alone
    """

    layers: tuple[Feature, ...] = ()
    further_layers: Mapping[str, Feature] = field(default_factory=dict)
    of_model: Callable[[OneModel], Feature | None] = lambda model: None
    endpoint: Callable[[Runtime, Dialect, Mapping[str, Route]], Endpoint] | None = None
    operations: Mapping[str, Application] = field(default_factory=dict)
    service: Any = None
    start: Callable[[], Awaitable[None]] = _nothing
    take_effect: Callable[[], None] = lambda: None
    drain: Callable[[], None] = lambda: None
    close: Callable[[], Awaitable[None]] = _nothing
