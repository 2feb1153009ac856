# Generated from asynchronous/client.py by tests/generate_sync.py; change it there.
"""The whole sync client."""

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from zaqar_lite.client.arguments import several
from zaqar_lite.client.claims import Claim, ClaimOptions
from zaqar_lite.client.endpoints import events
from zaqar_lite.client.endpoints.claims import Claims
from zaqar_lite.client.endpoints.dead_letters import DeadLetters
from zaqar_lite.client.endpoints.jobs import Jobs
from zaqar_lite.client.endpoints.keys import Keys
from zaqar_lite.client.endpoints.messages import Messages
from zaqar_lite.client.endpoints.pools import Pools
from zaqar_lite.client.endpoints.queues import Queues
from zaqar_lite.client.endpoints.quotas import Quotas
from zaqar_lite.client.endpoints.schedules import SyncSchedules
from zaqar_lite.client.endpoints.subscriptions import Subscriptions
from zaqar_lite.client.endpoints.topics import Topics
from zaqar_lite.client.errors import Unavailable, Unreachable
from zaqar_lite.client.event_stream import PAUSE, EventParser
from zaqar_lite.client.long_polling import POLL
from zaqar_lite.client.models import Message
from zaqar_lite.client.posting import (
    Posted,
    PostOptions,
    PostSummary,
    Rejected,
    post_all,
)
from zaqar_lite.client.sync.calls import SyncCalls
from zaqar_lite.client.sync.runtime import sleep

I = TypeVar("I")  # noqa: E741 - an item


class Client(
    Messages,
    Claims,
    Queues,
    Topics,
    Subscriptions,
    DeadLetters,
    Jobs,
    Keys,
    Quotas,
    Pools,
    SyncCalls,
):
    """The sync client, which threads may share: `with Client(...) as client:`.

    Without a block, `client.close()` closes its connections.
    """

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
        processed are deleted and the others released, also when SIGTERM ends the program. A
        claim of nothing is empty (and false), not an error.

        Raises:
            ClaimLost: it lapsed meanwhile; someone else may have the messages.
        """
        options = ClaimOptions(
            limit=limit,
            ttl=ttl,
            grace=grace,
            details=details,
            raw=raw,
            renew=renew,
            renew_every=renew_every,
            wait=wait,
            poll=poll,
        )
        return Claim(self, queue, options)

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
        options = PostOptions(
            batch_size=batch_size,
            batch_bytes=batch_bytes,
            in_flight=in_flight,
            rate=rate,
            key=key,
            run=run,
            on_posted=on_posted,
            on_rejected=on_rejected,
        )
        return post_all(self, queue, several(items, "post_all"), options)

    def events(
        self,
        queue: str,
        *,
        marker: str | None = None,
        start: str = "first",
        echo: bool = True,
        include_delayed: bool = False,
        details: bool = False,
    ) -> Generator[Message, None]:
        """Yield messages as they become visible, claiming none, for as long as you read.

        A stream that was cut is opened again, as soon as the server answers, and goes on where it
        was: nothing is lost that is still there. On a queue with delays a message may come twice
        then.

        Args:
            queue: the queue.
            marker: begin after this message, or this marker of a list.
            start: where to begin without one: "first" or "now".
            echo: whether to show what this client id posted.
            include_delayed: whether to show what is not claimable yet.
            details: whether to ask for claim counts, times, headers and dead-letter sources.

        Raises:
            NotFound: the server has no streams (OpenStack's Zaqar has none).
            Unreachable, Unavailable: it could not be opened the first time.
        """
        was_open = False
        while True:
            wanted = events.events(
                queue,
                marker=marker,
                start=start,
                echo=echo,
                include_delayed=include_delayed,
                details=details,
            )
            try:
                stream = self.call(wanted)
            except (Unreachable, Unavailable):
                if not was_open:
                    raise
                sleep(PAUSE, None)
                continue
            was_open = True
            parser = EventParser()
            try:
                for part in stream:
                    for event in parser.feed(part):
                        # An event counts as read once its message was taken.
                        if event.data is not None:
                            yield events.read_event(queue, event.data)
                        marker = event.id or marker
            except Unreachable:
                pass
            finally:
                stream.close()
            sleep(PAUSE, None)
