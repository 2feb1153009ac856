"""Draining a pool: what is kept of it, and how it is begun and shown."""

import secrets

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Conflict, NotFound
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.pooling.pools import PoolRegistry
from zaqar_lite.service.records import retried
from zaqar_lite.storage.management import ManagementStore

DRAIN = "pool-drain"
KEPT_MS = 30 * 86_400_000
"""How long it is told how a drain ended."""
ARRIVES_MS = 30_000
"""How long after it was noted a redrive may put messages into a pool that go on from there."""


class Batch(msgspec.Struct):
    """Messages on their way from one store to another.

    Until it is `checked` they are in the old store, and may be in the new one. Then `ids` are to be
    deleted in the old one, and `gone`, which somebody deleted on the way, in the new one.
    """

    project: str
    queue: str
    ids: list[str]
    gone: list[str] = []
    checked: bool = False

    @property
    def ref(self) -> QueueRef:
        """The queue."""
        return QueueRef(self.project, self.queue)


class Drain(msgspec.Struct, omit_defaults=True):
    """How far the draining of a pool is; instants in milliseconds.

    `number` is that of the last batch, `holder` the process that works on it, until `held_until`.
    With `arrivals` nobody asked for it: queues stay, and only messages go on that a redrive put
    there for queues of other pools; that was noted at `arrives_at`, so long it does not end. Then
    `ended` is the drain that was asked for last.
    """

    pool: str
    id: str
    started_at: int
    ended_at: int = 0
    state: str = "running"
    queues: int = 0
    moved: int = 0
    problem: str | None = None
    number: int = 0
    batch: Batch | None = None
    holder: str = ""
    held_until: int = 0
    arrivals: bool = False
    arrives_at: int = 0
    ended: "Drain | None" = None

    @property
    def asked_for(self) -> "Drain | None":
        """This drain, or the one before it that somebody asked for."""
        return self.ended if self.arrivals else self

    @property
    def source(self) -> str:
        """What the stores that take its messages in know it by."""
        return f"{self.pool}/{self.id}"

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.state != "running"


encode = msgspec.json.encode
decode = msgspec.json.Decoder(Drain).decode


class Drains:
    """Begin to drain pools, and tell how far it is."""

    def __init__(self, management: ManagementStore, registry: PoolRegistry, clock: Clock) -> None:
        self._management = management
        self._registry = registry
        self._clock = clock

    async def begin(self, pool: str) -> Drain:
        """Begin to drain a pool; one that is being drained goes on.

        Raises:
            NotFound: there is no such pool.
            Conflict: its weight is not 0, so that new queues would come.
        """
        if (await self._registry.pool(pool)).weight:
            raise Conflict(
                f"The pool {pool} still gets new queues: set its weight to 0 first, and drain it "
                "then."
            )
        return await self._begin(pool, arrivals=False)

    async def carry(self, pool: str) -> None:
        """Let messages go on that come to a pool for queues of others, in the next seconds."""
        await self._begin(pool, arrivals=True)

    @retried("The drain of the pool {1}")
    async def _begin(self, pool: str, *, arrivals: bool) -> Drain:
        record = await self._management.get_record(DRAIN, "", pool)
        drain, now = None if record is None else decode(record.value), self._clock.now_ms()
        if drain is None or drain.is_over:
            ended = None if drain is None else drain.asked_for
            drain = Drain(pool, secrets.token_hex(8), now, arrivals=arrivals, ended=ended)
        if arrivals:
            drain.arrives_at = now
        else:
            drain.arrivals, drain.ended = False, None
        await self._management.put_record(
            DRAIN, "", pool, encode(drain), expected=0 if record is None else record.version
        )
        return drain

    async def get(self, pool: str) -> Drain:
        """How far the draining of a pool is, or how it ended.

        Raises:
            NotFound: it was never drained, or that is forgotten.
        """
        record = await self._management.get_record(DRAIN, "", pool)
        drain = None if record is None else decode(record.value).asked_for
        if drain is None:
            raise NotFound(f"The pool {pool} was never drained.")
        return drain
