"""The async client: one method per endpoint, over aiohttp."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from zaqar_lite.client import encoding
from zaqar_lite.client.claims import AsyncClaim, ClaimOptions
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
from zaqar_lite.client.posting import Posted, PostOptions, PostSummary, Rejected, post_all_async
from zaqar_lite.client.shell import Shell, chunks
from zaqar_lite.client.termination import ASYNC_TERMINATION
from zaqar_lite.client.transports import AiohttpTransport, AsyncTransport
from zaqar_lite.client.wire import Call

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - an item


class AsyncClient(Shell):
    """An async client for one event loop. Use it in an `async with`, or `await close()` it.

    Its arguments are `Shell`'s. `Client` has the same methods.
    """

    transport: AsyncTransport

    def _open(self) -> None:
        self.transport = AiohttpTransport(
            timeout=self._timeout, connections=self._connections, ssl_context=self._ssl_context
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def call(self, call: Call[T]) -> T:
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
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Login):
                await asyncio.to_thread(self._auth.login)
            else:
                try:
                    outcome = await self.transport.send(self.url, step)
                except Unreachable as error:
                    outcome = error

    async def _drive(self, steps: Steps[T], cancelled: list[asyncio.CancelledError]) -> T:
        """Carry out the calls that a generator asks for, and tell it how each of them went.

        A cancellation is put into `cancelled`, where the generator sees it and comes to its end,
        and raised then: what a call under way has claimed must be given back. A second one cuts
        the call.
        """
        try:
            call = next(steps)
            while True:
                running = asyncio.ensure_future(self.call(call))
                while not running.done():
                    try:
                        await asyncio.wait([running])
                    except asyncio.CancelledError as error:
                        if cancelled:
                            running.cancel()
                        cancelled.append(error)
                try:
                    outcome = running.result()
                except BaseException as error:  # noqa: BLE001 - the generator raises it again
                    call = steps.throw(error)
                else:
                    call = steps.send(outcome)
        except StopIteration as done:
            if cancelled:
                raise cancelled[0] from None
            result: T = done.value
            return result

    # Queues

    async def create_queue(self, queue: str, metadata: Mapping[str, object] | None = None) -> bool:
        """Make a queue; return whether it is new. An existing queue's metadata stays as it is."""
        return await self.call(queues.create_queue(queue, metadata))

    async def get_queue(self, queue: str) -> dict[str, Any]:
        """Return a queue's metadata, with the server's defaults for what was not set."""
        return await self.call(queues.get_queue(queue))

    async def update_queue(
        self, queue: str, metadata: Mapping[str, object], *, remove: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Set and remove keys of a queue's metadata, all or none; return what it is then."""
        return await self.call(queues.update_queue(queue, metadata, remove))

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages; an absent one is no error."""
        await self.call(queues.delete_queue(queue))

    async def list_queues(
        self, *, detailed: bool = False, name: str | None = None
    ) -> AsyncIterator[Queue]:
        """Yield the project's queues by name, page by page; `name` keeps those containing it."""
        marker: str | None = None
        while True:
            page = await self.call(
                queues.list_queues(
                    marker=marker, limit=self.page_size, detailed=detailed, name=name
                )
            )
            for item in page.queues:
                yield item
            marker = page.marker
            if marker is None:
                return

    async def stats(self, queue: str) -> Stats:
        """Count a queue's messages."""
        return await self.call(queues.stats(queue))

    async def purge(self, queue: str, resource_types: Iterable[str] | None = None) -> None:
        """Delete all "messages" and "subscriptions" of a queue, or only the types named."""
        await self.call(queues.purge(queue, resource_types))

    async def ranges(self, queue: str, count: int) -> list[Range]:
        """Split what a queue holds now into at most `count` parts, to read them in parallel."""
        return await self.call(queues.ranges(queue, count))

    async def history(self, queue: str, *, state: str = "done") -> AsyncIterator[Done]:
        """Yield what was deleted (`done`), or what `failed`, if the queue keeps a history.

        Failed is what had all its deliveries where there is no dead-letter queue to go to.
        """
        marker: str | None = None
        while True:
            page = await self.call(
                queues.history(queue, state=state, marker=marker, limit=self.page_size)
            )
            for item in page.messages:
                yield item
            marker = page.marker
            if marker is None:
                return

    async def share(
        self,
        queue: str,
        *,
        paths: Iterable[str] = ("messages",),
        methods: Iterable[str] = ("GET",),
        expires: dt.datetime | None = None,
    ) -> SignedURL:
        """Make a pre-signed permission for others, a day long unless `expires` says otherwise."""
        return await self.call(queues.share(queue, paths=paths, methods=methods, expires=expires))

    # Messages

    async def post(
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
        return (await self.call(messages.post(queue, [encoding.encode_message(message)])))[0]

    async def post_batch(
        self, queue: str, batch: Iterable[object], *, idempotency_key: str | None = None
    ) -> list[str]:
        """Post messages (NewMessage, or bodies) in one request; return their ids in order."""
        encoded = [encoding.encode_message(message) for message in batch]
        return await self.call(messages.post(queue, encoded, idempotency_key=idempotency_key))

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
        return await post_all_async(self, queue, items, options)

    async def list_messages(
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
    ) -> AsyncIterator[Message]:
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
            page = await self.list_page(
                queue,
                marker=marker,
                until=until,
                echo=echo,
                include_claimed=include_claimed,
                include_delayed=include_delayed,
                details=details,
                raw=raw,
            )
            for item in page.messages:
                yield item
            marker = page.marker
            if marker is None:
                return

    async def list_page(
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
        return await self.call(
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

    async def get_message(self, queue: str, message_id: str, *, details: bool = False) -> Message:
        """Return a message, whatever its state.

        Raises:
            MessageNotFound: there is none (any more).
        """
        return await self.call(messages.get_message(queue, message_id, details=details))

    async def get_messages(
        self, queue: str, ids: Iterable[str], *, details: bool = False, raw: bool = False
    ) -> AsyncIterator[Message]:
        """Yield those of the messages that exist, in no special order."""
        for part in chunks(ids, self.page_size):
            try:
                found = await self.call(
                    messages.get_messages(queue, part, details=details, raw=raw)
                )
            except MessageNotFound:
                continue
            for item in found:
                yield item

    async def edit(
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
        return await self.call(
            messages.edit(queue, message_id, body=body, ttl=ttl, delay=delay, deliver_at=deliver_at)
        )

    async def cancel(self, queue: str, message_id: str) -> None:
        """Take back a message that nobody holds; one that is gone already is no error.

        Raises:
            MessageClaimed: too late, someone holds it.
        """
        await self.call(messages.delete_message(queue, message_id))

    async def delete_message(
        self, queue: str, message_id: str, *, claim_id: str | None = None
    ) -> None:
        """Delete one message; a claimed one needs its claim's id, an absent one is no error.

        Raises:
            MessageClaimed: someone holds it, and no claim id was given.
            ClaimLost: that claim does not hold it (any more).
        """
        await self.call(messages.delete_message(queue, message_id, claim_id=claim_id))

    async def delete_messages(
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
            await self.call(messages.delete_messages(queue, part, claim_ids=claimed, force=force))

    async def pop(self, queue: str, limit: int = 1, *, raw: bool = False) -> list[Message]:
        """Take messages out at once, at most once: a lost answer loses them."""
        return await self.call(messages.pop(queue, limit, raw=raw))

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
    ) -> AsyncClaim:
        """Claim messages for an `async with` block; the arguments are `ClaimOptions`'.

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
        return AsyncClaim(self, queue, options)

    async def create_claim(
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
        return await self.call(
            claims.claim(queue, limit=limit, ttl=ttl, grace=grace, details=details, raw=raw)
        )

    async def get_claim(
        self, queue: str, claim_id: str, *, details: bool = False, raw: bool = False
    ) -> Held:
        """Return a claim and what it still holds.

        Raises:
            ClaimLost: it has lapsed or was released.
        """
        return await self.call(claims.get_claim(queue, claim_id, details=details, raw=raw))

    async def renew_claim(
        self, queue: str, claim_id: str, *, ttl: int = 300, grace: int = 60
    ) -> None:
        """Let a claim last `ttl` seconds from now.

        Raises:
            ClaimLost: it has lapsed or was released.
        """
        await self.call(claims.renew(queue, claim_id, ttl=ttl, grace=grace))

    async def release_claim(self, queue: str, claim_id: str) -> None:
        """Give back at once what a claim still holds; an absent claim is no error."""
        await self.call(claims.release(queue, claim_id))

    # Dead letters

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
        task = asyncio.current_task()
        holding = self.release_on_sigterm and ASYNC_TERMINATION.hold(task)
        try:
            cancelled: list[asyncio.CancelledError] = []
            redrive = Redrive(queue, options, stopping=lambda: bool(cancelled))
            return await self._drive(redrive.steps(self.page_size), cancelled)
        finally:
            if holding and task is not None:
                ASYNC_TERMINATION.let_go(task)

    # The service

    async def ping(self) -> None:
        """Return if the server and its store are up.

        Raises:
            Unavailable: the server is up, its store is not.
            Unreachable: no answer.
        """
        await self.call(queues.ping())

    async def health(self) -> dict[str, Any]:
        """Return how every operation went when the server tried it now (admin mode only)."""
        return await self.call(queues.health())

    async def home(self) -> dict[str, Any]:
        """Return the home document: which resources this server has."""
        return await self.call(queues.home())
