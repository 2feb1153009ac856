# Generated from asynchronous/dead_letters.py by tests/generate_sync.py; change it there.
"""Dead letters: the sync client's methods."""

import contextlib
from collections.abc import Callable, Iterator

from zaqar_lite.client.arguments import takes
from zaqar_lite.client.dead_letters import (
    LOOK_EVERY,
    NO_SUCH_ROUTE,
    Redrive,
    Redriven,
    RedriveOptions,
    Source,
    told,
)
from zaqar_lite.client.errors import Refused, ZaqarError
from zaqar_lite.client.models import Message
from zaqar_lite.client.sync.jobs import SyncJobs
from zaqar_lite.client.sync.messages import SyncMessages
from zaqar_lite.client.sync.runtime import sleep, to_the_end


class SyncDeadLetters(SyncMessages, SyncJobs):
    """List, count and move back dead letters."""

    def list_dead_letters(
        self, queue: str, *, source: str | None = None, raw: bool = False
    ) -> Iterator[Message]:
        """Yield a queue's dead letters, claimed or not; `dead_letter` says where each came from."""
        takes("source", source, str)
        for letter in self.list_messages(queue, include_claimed=True, details=True, raw=raw):
            if source is None or (letter.dead_letter and letter.dead_letter.source == source):
                yield letter

    def count_dead_letters(self, queue: str) -> list[Source]:
        """Count a dead-letter queue's letters by the queue that they came from."""
        sources: dict[str | None, Source] = {}
        for letter in self.list_dead_letters(queue, raw=True):
            name = letter.dead_letter.source if letter.dead_letter else None
            sources.setdefault(name, Source(name)).add(letter)
        return sorted(sources.values(), key=lambda source: source.queue or "")

    def redrive(
        self,
        queue: str,
        *,
        to: str | None = None,
        source: str | None = None,
        where: Callable[[Message], bool] | str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        ttl: int | None = None,
        delay: int | None = None,
        on_moved: Callable[[Message, str], None] | None = None,
        server: bool = True,
    ) -> Redriven:
        """Move dead letters back; `RedriveOptions` explains the arguments.

        The server does it by a job, in which letters keep their ids, and this call waits for the
        job's end; an error or a cancellation meanwhile cancels the job. The client does it where
        the server has no such jobs, where `where` or `on_moved` is a function, and with
        `server=False`: each letter is claimed, posted with its id as the idempotency key, and
        deleted. Several such redrives may run at once, and one that was killed may be run again
        after a minute. A letter that is looked at and stays counts one claim more. Either way each
        letter is moved once, or left.

        Raises:
            Conflict: a job of the server's redrives this queue already.
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
        options.check(queue)
        if server and options.is_plain:
            done = self._redrive_there(queue, options)
            if done is not None:
                return done
        return to_the_end(
            self.call,
            lambda stopping: Redrive(queue, options, stopping=stopping).steps(self.page_size),
            on_sigterm=self.release_on_sigterm,
        )

    def _redrive_there(self, queue: str, options: RedriveOptions) -> Redriven | None:
        """Have the server do it; None where it has no such jobs."""
        try:
            job = self.start_redrive(queue, **options.order())
        except Refused as error:
            if error.status in NO_SUCH_ROUTE and not isinstance(options.where, str):
                return None
            raise
        try:
            while not job.is_over:
                sleep(LOOK_EVERY, None)
                job = self.get_job(job.path)
        except BaseException:
            with contextlib.suppress(ZaqarError):  # this error must not hide the other
                self.cancel_job(job.path)
            raise
        return told(job, dry_run=options.dry_run)
