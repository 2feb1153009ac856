"""Draining a pool: what is kept of it, and how it is begun and shown."""

import secrets

import msgspec

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Conflict, NotFound, RecordChanged
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.service.pooling.registry import Registry
from zaqar_lite.storage.management import ManagementStore

DRAIN = "pool-drain"
_TRIES = 20


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

    def __init__(self, management: ManagementStore, registry: Registry, clock: Clock) -> None:
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
        for _ in range(_TRIES):
            record = await self._management.get_record(DRAIN, "", pool)
            if record is not None and not (known := decode(record.value)).is_over:
                return known
            drain = Drain(pool, secrets.token_hex(8), self._clock.now_ms())
            try:
                await self._management.put_record(
                    DRAIN, "", pool, encode(drain), expected=0 if record is None else record.version
                )
            except RecordChanged:
                continue
            return drain
        raise Conflict(f"The pool {pool} is being drained by others just now: try again.")

    async def get(self, pool: str) -> Drain:
        """How far the draining of a pool is, or how it ended.

        Raises:
            NotFound: it was never drained.
        """
        record = await self._management.get_record(DRAIN, "", pool)
        if record is None:
            raise NotFound(f"The pool {pool} was never drained.")
        return decode(record.value)
