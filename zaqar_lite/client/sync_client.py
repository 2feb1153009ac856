"""The sync client: one method per endpoint, over urllib3."""

import contextlib
import datetime as dt
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from zaqar_lite.client import encoding
from zaqar_lite.client.claims import Claim, ClaimOptions
from zaqar_lite.client.dead_letters import Redrive, Redriven, RedriveOptions, Source, Steps
from zaqar_lite.client.endpoints import claims, messages, queues
from zaqar_lite.client.errors import MessageNotFound, Unreachable
from zaqar_lite.client.exchange import Login, Outcome, Sleep, exchange
from zaqar_lite.client.models import (
    Done,
    Held,
    Message,
    MessagePage,
    NewMessage,
    Queue,
    Range,
    SignedURL,
    Stats,
)
from zaqar_lite.client.posting import Posted, PostOptions, PostSummary, Rejected, post_all
from zaqar_lite.client.shell import Shell, chunks
from zaqar_lite.client.termination import TERMINATION
from zaqar_lite.client.transports import Transport, Urllib3Transport
from zaqar_lite.client.wire import Call

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - an item


class Client(Shell):
    """A sync client; threads may share it. Use it in a `with`, or `close()` it.

    Its arguments are `Shell`'s. `AsyncClient` has the same methods.
    """

    transport: Transport

    def _open(self) -> None:
        self.transport = Urllib3Transport(
            timeout=self._timeout, connections=self._connections, ssl_context=self._ssl_context
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    def call(self, call: Call[T]) -> T:
        """Carry out an endpoint's call, with retries."""
        steps = exchange(call, headers=self._headers, auth=self._auth, retries=self._retries)
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                result: T = done.value
                return result
            outcome = None
            if isinstance(step, Sleep):
                time.sleep(step.seconds)
            elif isinstance(step, Login):
                self._auth.login()
            else:
                try:
                    outcome = self.transport.send(self.url, step)
                except Unreachable as error:
                    outcome = error

    def _drive(self, steps: Steps[T]) -> T:
        """Carry out the calls that a generator asks for, and tell it how each of them went."""
        try:
            call = next(steps)
            while True:
                try:
                    outcome = self.call(call)
                except BaseException as error:  # noqa: BLE001 - the generator raises it again
                    call = steps.throw(error)
                else:
                    call = steps.send(outcome)
        except StopIteration as done:
            result: T = done.value
            return result

    # Queues

    def create_queue(self, queue: str, metadata: Mapping[str, object] | None = None) -> bool:
        """Make a queue; return whether it is new. An existing queue's metadata stays as it is."""
        return self.call(queues.create_queue(queue, metadata))

    def get_queue(self, queue: str) -> dict[str, Any]:
        """Return a queue's metadata, with the server's defaults for what was not set."""
        return self.call(queues.get_queue(queue))

    def update_queue(
        self, queue: str, metadata: Mapping[str, object], *, remove: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Set and remove keys of a queue's metadata, all or none; return what it is then."""
        return self.call(queues.update_queue(queue, metadata, remove))

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages; an absent one is no error."""
        self.call(queues.delete_queue(queue))

    def list_queues(self, *, detailed: bool = False, name: str | None = None) -> Iterator[Queue]:
        """Yield the project's queues by name, page by page; `name` keeps those containing it."""
        marker: str | None = None
        while True:
            page = self.call(
                queues.list_queues(
                    marker=marker, limit=self.page_size, detailed=detailed, name=name
                )
            )
            yield from page.queues
            marker = page.marker
            if marker is None:
                return

    def stats(self, queue: str) -> Stats:
        """Count a queue's messages."""
        return self.call(queues.stats(queue))

    def purge(self, queue: str, resource_types: Iterable[str] | None = None) -> None:
        """Delete all "messages" and "subscriptions" of a queue, or only the types named."""
        self.call(queues.purge(queue, resource_types))

    def ranges(self, queue: str, count: int) -> list[Range]:
        """Split what a queue holds now into at most `count` parts, to read them in parallel."""
        return self.call(queues.ranges(queue, count))

    def history(self, queue: str, *, state: str = "done") -> Iterator[Done]:
        """Yield what was deleted (`done`), or what `failed`, if the queue keeps a history.

        Failed is what had all its deliveries where there is no dead-letter queue to go to.
        """
        marker: str | None = None
        while True:
            page = self.call(
                queues.history(queue, state=state, marker=marker, limit=self.page_size)
            )
            yield from page.messages
            marker = page.marker
            if marker is None:
                return

    def share(
        self,
        queue: str,
        *,
        paths: Iterable[str] = ("messages",),
        methods: Iterable[str] = ("GET",),
        expires: dt.datetime | None = None,
    ) -> SignedURL:
        """Make a pre-signed permission for others, a day long unless `expires` says otherwise."""
        return self.call(queues.share(queue, paths=paths, methods=methods, expires=expires))

    # Messages

    def post(
        self,
        queue: str,
        body: object,
        *,
        ttl: int | None = None,
        delay: int | None = None,
        deliver_at: dt.datetime | None = None,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Post one message and return its id; the arguments are `NewMessage`'s."""
        message = NewMessage(
            body=body,
            ttl=ttl,
            delay=delay,
            deliver_at=deliver_at,
            idempotency_key=idempotency_key,
            headers=headers,
        )
        return self.call(messages.post(queue, [encoding.encode_message(message)]))[0]

    def post_batch(
        self, queue: str, batch: Iterable[object], *, idempotency_key: str | None = None
    ) -> list[str]:
        """Post messages (NewMessage, or bodies) in one request; return their ids in order."""
        encoded = [encoding.encode_message(message) for message in batch]
        return self.call(messages.post(queue, encoded, idempotency_key=idempotency_key))

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
        on_posted: Callable[[Posted[I]], None] | None = None,
        on_rejected: Callable[[Rejected[I]], None] | None = None,
    ) -> PostSummary:
        """Post every item of an iterable (NewMessage, or bodies), in constant memory.

        The arguments are `PostOptions`'. Without `on_rejected` the first message that is refused
        raises; what was under way then may be stored.
        """
        options = PostOptions(
            batch_size=batch_size,
            batch_bytes=batch_bytes,
            in_flight=in_flight,
            rate=rate,
            key=key,
            on_posted=on_posted,
            on_rejected=on_rejected,
        )
        return post_all(self, queue, items, options)

    def list_messages(
        self,
        queue: str,
        *,
        marker: str | None = None,
        until: str | None = None,
        echo: bool = True,
        include_claimed: bool = False,
        include_delayed: bool = False,
        details: bool = False,
        raw: bool = False,
    ) -> Iterator[Message]:
        """Yield messages in order, page by page, claiming none.

        Args:
            queue: the queue.
            marker: begin after it; `until`: end with it (see `ranges`).
            until: the last to show.
            echo: whether to show what this client id posted.
            include_claimed: whether to show what others hold.
            include_delayed: whether to show what is not claimable yet.
            details: whether to ask for claim counts, times, headers and dead-letter sources.
            raw: whether bodies stay JSON text (`RawBody`).
        """
        while True:
            page = self.list_page(
                queue,
                marker=marker,
                until=until,
                echo=echo,
                include_claimed=include_claimed,
                include_delayed=include_delayed,
                details=details,
                raw=raw,
            )
            yield from page.messages
            marker = page.marker
            if marker is None:
                return

    def list_page(
        self,
        queue: str,
        *,
        marker: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        echo: bool = True,
        include_claimed: bool = False,
        include_delayed: bool = False,
        details: bool = False,
        raw: bool = False,
    ) -> MessagePage:
        """Return one page of `list_messages`, with the marker of the next."""
        return self.call(
            messages.list_messages(
                queue,
                marker=marker,
                until=until,
                limit=limit or self.page_size,
                echo=echo,
                include_claimed=include_claimed,
                include_delayed=include_delayed,
                details=details,
                raw=raw,
            )
        )

    def get_message(self, queue: str, message_id: str, *, details: bool = False) -> Message:
        """Return a message, whatever its state.

        Raises:
            MessageNotFound: there is none (any more).
        """
        return self.call(messages.get_message(queue, message_id, details=details))

    def get_messages(
        self, queue: str, ids: Iterable[str], *, details: bool = False, raw: bool = False
    ) -> Iterator[Message]:
        """Yield those of the messages that exist, in no special order."""
        for part in chunks(ids, self.page_size):
            try:
                found = self.call(messages.get_messages(queue, part, details=details, raw=raw))
            except MessageNotFound:
                continue
            yield from found

    def edit(
        self,
        queue: str,
        message_id: str,
        *,
        body: object = ...,
        ttl: int | None = None,
        delay: int | None = None,
        deliver_at: dt.datetime | None = None,
    ) -> Message:
        """Change a message that is still delayed; what is not given stays.

        Raises:
            NotDelayed: too late.
            MessageNotFound: there is none (any more).
        """
        return self.call(
            messages.edit(queue, message_id, body=body, ttl=ttl, delay=delay, deliver_at=deliver_at)
        )

    def cancel(self, queue: str, message_id: str) -> None:
        """Take back a message that nobody holds; one that is gone already is no error.

        Raises:
            MessageClaimed: too late, someone holds it.
        """
        self.call(messages.delete_message(queue, message_id))

    def delete_message(self, queue: str, message_id: str, *, claim_id: str | None = None) -> None:
        """Delete one message; a claimed one needs its claim's id, an absent one is no error.

        Raises:
            MessageClaimed: someone holds it, and no claim id was given.
            ClaimLost: that claim does not hold it (any more).
        """
        self.call(messages.delete_message(queue, message_id, claim_id=claim_id))

    def delete_messages(
        self,
        queue: str,
        ids: Iterable[str],
        *,
        claim_ids: Iterable[str] | None = None,
        force: bool = False,
    ) -> None:
        """Delete messages that these claims hold, all or none per page.

        `force=True`, instead of claim ids, deletes them whoever holds them.

        Raises:
            ClaimLost: one of them is not held by these claims (any more).
            ValueError: neither claim ids nor force was given.
        """
        claimed = None if claim_ids is None else list(claim_ids)
        for part in chunks(ids, self.page_size):
            self.call(messages.delete_messages(queue, part, claim_ids=claimed, force=force))

    def pop(self, queue: str, limit: int = 1, *, raw: bool = False) -> list[Message]:
        """Take messages out at once, at most once: a lost answer loses them."""
        return self.call(messages.pop(queue, limit, raw=raw))

    # Claims

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
    ) -> Claim:
        """Claim messages for the length of a `with` block; the arguments are `ClaimOptions`'.

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
        )
        return Claim(self, queue, options)

    def create_claim(
        self,
        queue: str,
        *,
        limit: int = 10,
        ttl: int = 300,
        grace: int = 60,
        details: bool = False,
        raw: bool = False,
    ) -> Held | None:
        """Claim messages, None if there is none; `claim` is the comfortable way.

        An answer that is lost leaves its messages claimed until `ttl` seconds are over: they are
        delayed, never lost.
        """
        return self.call(
            claims.claim(queue, limit=limit, ttl=ttl, grace=grace, details=details, raw=raw)
        )

    def get_claim(
        self, queue: str, claim_id: str, *, details: bool = False, raw: bool = False
    ) -> Held:
        """Return a claim and what it still holds.

        Raises:
            ClaimLost: it has lapsed or was released.
        """
        return self.call(claims.get_claim(queue, claim_id, details=details, raw=raw))

    def renew_claim(self, queue: str, claim_id: str, *, ttl: int = 300, grace: int = 60) -> None:
        """Let a claim last `ttl` seconds from now.

        Raises:
            ClaimLost: it has lapsed or was released.
        """
        self.call(claims.renew(queue, claim_id, ttl=ttl, grace=grace))

    def release_claim(self, queue: str, claim_id: str) -> None:
        """Give back at once what a claim still holds; an absent claim is no error."""
        self.call(claims.release(queue, claim_id))

    # Dead letters

    def list_dead_letters(
        self, queue: str, *, source: str | None = None, raw: bool = False
    ) -> Iterator[Message]:
        """Yield what lies in a dead-letter queue, claimed or not; `dead_letter` tells its story."""
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
        holding = self.release_on_sigterm and TERMINATION.hold()
        try:
            with TERMINATION.shield() if holding else contextlib.nullcontext():
                stopping = (lambda: TERMINATION.requested) if holding else (lambda: False)
                redrive = Redrive(queue, options, stopping=stopping)
                return self._drive(redrive.steps(self.page_size))
        finally:
            if holding:
                TERMINATION.let_go()

    # The service

    def ping(self) -> None:
        """Return if the server and its store are up.

        Raises:
            Unavailable: the server is up, its store is not.
            Unreachable: no answer.
        """
        self.call(queues.ping())

    def health(self) -> dict[str, Any]:
        """Return how every operation went when the server tried it now (admin mode only)."""
        return self.call(queues.health())

    def home(self) -> dict[str, Any]:
        """Return the home document: which resources this server has."""
        return self.call(queues.home())
