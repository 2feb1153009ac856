# Generated from async_client.py by tests/generate_sync.py; change it there.
"""The sync client: every resource of the API as methods, in the caller's thread."""

from collections.abc import Callable, Iterable
from typing import Self, TypeVar

from zaqar_lite.client.arguments import options_of, several
from zaqar_lite.client.calls import Call, Request, Response
from zaqar_lite.client.claims import Claim
from zaqar_lite.client.endpoints.claims import ClaimOptions, Claims
from zaqar_lite.client.endpoints.dead_letters import DeadLetters
from zaqar_lite.client.endpoints.events import Events
from zaqar_lite.client.endpoints.jobs import Jobs
from zaqar_lite.client.endpoints.messages import Messages
from zaqar_lite.client.endpoints.pools import Pools
from zaqar_lite.client.endpoints.projects import Keys, Quotas
from zaqar_lite.client.endpoints.queues import Queues, Topics
from zaqar_lite.client.endpoints.schedules import SyncSchedules
from zaqar_lite.client.endpoints.subscriptions import Subscriptions
from zaqar_lite.client.long_polling import POLL
from zaqar_lite.client.posting import Posted, PostOptions, PostSummary, Rejected, post_all
from zaqar_lite.client.sync_runner import SyncRunner
from zaqar_lite.client.transports import Transport

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


class Client(
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
    SyncRunner,
):
    """The sync client, which threads may share: `with Client(...) as client:`.

    Without a block, `client.close()` closes its connections.
    """

    transport: Transport

    def _open(self) -> None:
        # Only here: a program with the other client alone need not import this library.
        from zaqar_lite.client.urllib3_transport import Urllib3Transport  # noqa: PLC0415

        self.transport = Urllib3Transport(
            timeout=self._timeout, connections=self._connections, ssl_context=self._ssl_context
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    def call(self, call: Call[T]) -> T:
        """Make a call of an endpoint, with retries."""
        return self._run(self._exchange(call))

    def _send(self, request: Request) -> Response:
        answer: Response = self.transport.send(self.url, request)
        return answer

    @property
    def schedules(self) -> SyncSchedules:
        """The schedules of the project: `put`, `get`, `patch`, `delete`, `list`, `fire`, ..."""
        return SyncSchedules(self)

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
    ) -> Claim:
        """Claim messages for a `with` block; `ClaimOptions` explains the arguments.

        The claim is renewed in the background. At the end of the block the messages that were
        processed are deleted and the others released, also when SIGTERM ends the program. A claim
        of nothing is empty (and false), not an error.

        Raises:
            ClaimLost: it lapsed meanwhile; someone else may have the messages.
        """
        return Claim(self, queue, options_of(ClaimOptions, locals()))

    def post_all(
        self,
        queue: str,
        items: Iterable[I],
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
        return post_all(self, queue, several(items, "post_all"), options)
