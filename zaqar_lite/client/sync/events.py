# Generated from asynchronous/events.py by tests/generate_sync.py; change it there.
"""A queue as a stream of messages: the sync client's method."""

from collections.abc import Generator

from zaqar_lite.client.endpoints import events
from zaqar_lite.client.errors import Unavailable, Unreachable
from zaqar_lite.client.event_stream import PAUSE, EventParser
from zaqar_lite.client.models import Message
from zaqar_lite.client.sync.calls import SyncCalls
from zaqar_lite.client.sync.runtime import sleep


class SyncEvents(SyncCalls):
    """Follow queues."""

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
