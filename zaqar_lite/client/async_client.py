"""The async client: every resource of the API as methods, on an event loop."""

from collections.abc import AsyncIterable, Callable, Iterable
from typing import Self, TypeVar

from zaqar_lite.client.arguments import options_of, several
from zaqar_lite.client.async_runner import AsyncRunner
from zaqar_lite.client.calls import Call, Request, Response
from zaqar_lite.client.claims import AsyncClaim
from zaqar_lite.client.endpoints.claims import ClaimOptions, Claims
from zaqar_lite.client.endpoints.dead_letters import DeadLetters
from zaqar_lite.client.endpoints.events import Events
from zaqar_lite.client.endpoints.jobs import Jobs
from zaqar_lite.client.endpoints.messages import Messages
from zaqar_lite.client.endpoints.pools import Pools
from zaqar_lite.client.endpoints.projects import Keys, Quotas
from zaqar_lite.client.endpoints.queues import Queues, Topics
from zaqar_lite.client.endpoints.schedules import AsyncSchedules
from zaqar_lite.client.endpoints.subscriptions import Subscriptions
from zaqar_lite.client.long_polling import POLL
from zaqar_lite.client.posting import Posted, PostOptions, PostSummary, Rejected, post_all_async
from zaqar_lite.client.transports import Transport

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


class AsyncClient(
    Messages,
    Claims,
    Queues,
    Topics,
    Events,
    Subscriptions,
    DeadLetters,
    Jobs,
    Keys,
    Quotas,
    Pools,
    AsyncRunner,
):
    """The async client, for one event loop after another: `async with AsyncClient(...) as client:`.

    Without a block, `await client.close()` closes its connections.
    """

    transport: Transport

    def _open(self) -> None:
        # Only here: a program with the other client alone need not import this library.
        from zaqar_lite.client.aiohttp_transport import AiohttpTransport  # noqa: PLC0415

        self.transport = AiohttpTransport(
            timeout=self._timeout, connections=self._connections, ssl_context=self._ssl_context
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def call(self, call: Call[T]) -> T:
        """Make a call of an endpoint, with retries."""
        return await self._run(self._exchange(call))

    async def _send(self, request: Request) -> Response:
        answer: Response = await self.transport.send(self.url, request)
        return answer

    @property
    def schedules(self) -> AsyncSchedules:
        """The schedules of the project: `put`, `get`, `patch`, `delete`, `list`, `fire`, ..."""
        return AsyncSchedules(self)

    def claim(
        self,
        queue: str,
        *,
        limit: int = 10,
        ttl: int = 300,
        grace: int = 60,
        details: bool = False,
        raw: bool = False,
        renew: bool = True,
        renew_every: float | None = None,
        wait: float = 0,
        poll: float = POLL,
    ) -> AsyncClaim:
        """Claim messages for an `async with` block; `ClaimOptions` explains the arguments.

        The claim is renewed in the background. At the end of the block the messages that were
        processed are deleted and the others released, also when SIGTERM ends the program. A claim
        of nothing is empty (and false), not an error.

        Raises:
            ClaimLost: it lapsed meanwhile; someone else may have the messages.
        """
        return AsyncClaim(self, queue, options_of(ClaimOptions, locals()))

    async def post_all(
        self,
        queue: str,
        items: Iterable[I] | AsyncIterable[I],
        *,
        batch_size: int = 100,
        batch_bytes: int = 262_144,
        in_flight: int = 8,
        rate: float | None = None,
        key: Callable[[I], str] | None = None,
        run: str | None = None,
        on_posted: Callable[[Posted[I]], None] | None = None,
        on_rejected: Callable[[Rejected[I]], None] | None = None,
    ) -> PostSummary:
        """Post every item of an iterable (NewMessage, or bodies), in constant memory.

        `PostOptions` explains the arguments. Without `on_rejected` the first message that is
        refused raises an error; requests that were under way then may have stored theirs.
        """
        options: PostOptions[I] = options_of(PostOptions, locals())
        return await post_all_async(self, queue, several(items, "post_all"), options)
