"""What every store is, whatever it keeps: it is opened, pinged and closed."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, Self, TypeVar


class Condition(NamedTuple):
    """What a store tells of its room, for operators.

    `is_low` says that it refuses whatever makes it grow, and goes on serving who empties it.
    `log_bytes` is the size of its write-ahead log, 0 where it has none.
    """

    is_low: bool = False
    log_bytes: int = 0


class Store(ABC):
    """What both kinds of store have in common: an async context manager that can be pinged.

    The parameter `queue` of an operation is a QueueRef: the project and name of a queue. A driver
    that keeps the messages of a queue in an object calls that object the `queue` and the QueueRef
    its `ref`, so the queue is passed by position.
    """

    @abstractmethod
    async def open(self) -> None:
        """Connect, check and prepare; idempotent.

        Raises:
            ConfigurationError: the store can never work as configured; says why and what to do.
            Unavailable: the backend does not answer.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what is under way and release everything; idempotent."""

    @abstractmethod
    async def ping(self) -> None:
        """Return when the backend answers.

        Raises:
            Unavailable: it does not.
        """

    def condition(self) -> Condition:
        """Tell how much room the store has; never raises."""
        return Condition()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class SharedConnection(Protocol):
    """A connection that is opened for the first of its users and closed for the last."""

    async def open(self, user: object, /) -> None:
        """Connect, check and prepare; idempotent."""

    async def close(self, user: object, /) -> None:
        """Let a user go; idempotent."""

    async def ping(self) -> None:
        """Return when the backend answers."""


C = TypeVar("C", bound=SharedConnection)


class Connected(Store, Generic[C]):
    """A store over a connection that it shares with the other one."""

    def __init__(self, connection: C) -> None:
        self._connection = connection

    async def open(self) -> None:  # noqa: D102 - the contract has it
        await self._connection.open(self)

    async def close(self) -> None:  # noqa: D102
        await self._connection.close(self)

    async def ping(self) -> None:  # noqa: D102
        await self._connection.ping()
