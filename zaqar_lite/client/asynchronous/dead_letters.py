"""Dead letters: the async client's methods."""

from collections.abc import AsyncIterator, Callable

from zaqar_lite.client.asynchronous.messages import AsyncMessages
from zaqar_lite.client.asynchronous.runtime import to_the_end
from zaqar_lite.client.dead_letters import Redrive, Redriven, RedriveOptions, Source
from zaqar_lite.client.models import Message


class AsyncDeadLetters(AsyncMessages):
    """List, count and move back dead letters."""

    async def list_dead_letters(
        self, queue: str, *, source: str | None = None, raw: bool = False
    ) -> AsyncIterator[Message]:
        """Yield what lies in a dead-letter queue, claimed or not; `dead_letter` tells its story."""
        async for letter in self.list_messages(queue, include_claimed=True, details=True, raw=raw):
            if source is None or (letter.dead_letter and letter.dead_letter.source == source):
                yield letter

    async def count_dead_letters(self, queue: str) -> list[Source]:
        """Count a dead-letter queue's letters by the queue that they came from."""
        sources: dict[str | None, Source] = {}
        async for letter in self.list_dead_letters(queue, raw=True):
            name = letter.dead_letter.source if letter.dead_letter else None
            sources.setdefault(name, Source(name)).add(letter)
        return sorted(sources.values(), key=lambda source: source.queue or "")

    async def redrive(
        self,
        queue: str,
        *,
        to: str | None = None,
        source: str | None = None,
        where: Callable[[Message], bool] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        ttl: int | None = None,
        delay: int | None = None,
        on_moved: Callable[[Message, str], None] | None = None,
    ) -> Redriven:
        """Move dead letters back; the arguments are `RedriveOptions`'.

        Each letter is claimed, posted under its id as the key, and deleted. So several redrives
        may run at once, and one that was killed may be run again: its letters can be claimed again
        after a minute. Each letter is moved once, or left. A letter that is looked at and stays
        counts a claim more.

        Raises:
            ZaqarError: the server refuses or is away; what was not moved is released.
        """
        options = RedriveOptions(
            to=to,
            source=source,
            where=where,
            limit=limit,
            dry_run=dry_run,
            ttl=ttl,
            delay=delay,
            on_moved=on_moved,
        )
        return await to_the_end(
            self.call,
            lambda stopping: Redrive(queue, options, stopping=stopping).steps(self.page_size),
            on_sigterm=self.release_on_sigterm,
        )
