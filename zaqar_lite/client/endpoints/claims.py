"""Claims: take messages for a while, keep them longer, settle them, give them back."""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial

from zaqar_lite.client import arguments, serialization
from zaqar_lite.client.base_client import BaseClient, chunks
from zaqar_lite.client.calls import Call, Operation, Request, Response, bad_answer
from zaqar_lite.client.endpoints.messages import read_messages
from zaqar_lite.client.endpoints.requests import JSON_TYPE, large, queue_path, tell, with_query
from zaqar_lite.client.errors import ClaimLost, Unreachable, Unsupported
from zaqar_lite.client.long_polling import POLL, Connection
from zaqar_lite.client.models import Held
from zaqar_lite.client.serialization import dumps, objects, reader
from zaqar_lite.client.settlements import Settled, Settlement, document
from zaqar_lite.client.steps import Steps, method

_SETTLED = reader(Settled)
LOST = {404: ClaimLost}
ABSENT = {404: Unsupported, 405: Unsupported}


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimOptions:
    """How to claim.

    Attributes:
        limit: messages at most; Zaqar Lite gives 1,000, OpenStack's Zaqar 20.
        ttl: seconds that the claim lasts without renewal (60 to 43,200).
        grace: seconds that a message outlives the claim, where its own ttl ends earlier.
        details: whether to ask for claim counts, times, headers and dead-letter sources.
        raw: whether bodies stay JSON text (`RawBody`).
        renew: whether to renew in the background while the block runs.
        renew_every: seconds between renewals; a third of the ttl by default.
        wait: seconds to wait for a message.
        poll: seconds between two requests, about, where the server does not wait.
    """

    limit: int = 10
    ttl: int = 300
    grace: int = 60
    details: bool = False
    raw: bool = False
    renew: bool = True
    renew_every: float | None = None
    wait: float = 0
    poll: float = POLL

    def __post_init__(self) -> None:
        """Refuse what is not of the kind that a field takes, and renewals without a pause.

        Raises:
            TypeError, ValueError: the text names the field.
        """
        arguments.check_fields(self)
        if self.renew_every is not None and self.renew_every <= 0:
            message = "renew_every must be above 0; renew=False switches renewals off"
            raise ValueError(message)


class Claims(BaseClient):
    """Create, read, renew, settle and release claims."""

    @method
    def create_claim(
        self,
        queue: str,
        *,
        limit: int = 10,
        ttl: int = 300,
        grace: int = 60,
        details: bool = False,
        raw: bool = False,
        wait: float = 0,
        poll: float = POLL,
        connection: Connection | None = None,
    ) -> Steps[Held | None]:
        """Claim messages, None if there is none; `claim` also renews and ends it.

        With `wait` it waits up to so many seconds for a message; `connection.hang_up()` ends that.
        A server that does not wait is asked about every `poll` seconds.

        An answer that is lost leaves its messages claimed until `ttl` seconds are over: they are
        delayed, never lost.
        """
        return create(self, queue, arguments.options_of(ClaimOptions, locals()), connection)

    @method
    def get_claim(
        self, queue: str, claim_id: str, *, details: bool = False, raw: bool = False
    ) -> Steps[Held]:
        """Return a claim and what it still holds.

        Raises:
            ClaimLost: it has lapsed or was released.
        """

        def read(response: Response) -> Held:
            found = serialization.document(response)
            messages = read_messages(queue, response, raw=raw)
            return Held(claim_id, queue, found["ttl"], found["age"], messages)

        path = with_query(queue_path(queue, "claims", claim_id), details=details or None)
        return self._exchange(Call(Request("GET", path, {}), read, LOST))

    @method
    def renew_claim(
        self, queue: str, claim_id: str, *, ttl: int = 300, grace: int = 60
    ) -> Steps[None]:
        """Let a claim last `ttl` seconds from now.

        Raises:
            ClaimLost: it has lapsed or was released.
        """
        return self._exchange(renew(queue, claim_id, ttl, grace))

    @method
    def release_claim(self, queue: str, claim_id: str, *, delay: int | None = None) -> Steps[None]:
        """Give back what a claim still holds; an absent claim is no error.

        At once, or after `delay` seconds, which OpenStack's Zaqar ignores.
        """
        return self._exchange(release(queue, claim_id, delay=delay))

    @method
    def settle(
        self, queue: str, claim_id: str, settlements: Iterable[Settlement]
    ) -> Steps[list[Settled]]:
        """Settle messages of a claim, each for itself; return one result for each, in their order.

        Raises:
            Unsupported: this server cannot.
            BadRequest: a value is out of range; the description names it.
        """
        return settle_in_parts(self, queue, claim_id, settlements)


def claim(
    queue: str, options: ClaimOptions, *, wait: int = 0, connection: Connection | None = None
) -> Call[Held | None]:
    """Claim messages; None when there is none to have."""

    def read(response: Response) -> Held | None:
        if response.status == 204:
            return None
        messages = read_messages(queue, response, raw=options.raw)
        location = response.headers.get("location", "")
        claim_id = location.rpartition("/")[2] or (messages[0].claim_id if messages else None)
        if not claim_id:
            raise bad_answer(response, "the claim has no id")
        return Held(claim_id, queue, options.ttl, 0, messages)

    path = with_query(
        queue_path(queue, "claims"),
        limit=options.limit,
        large=large(options.limit),
        details=options.details or None,
        wait=wait or None,
    )
    body = dumps(_times(options.ttl, options.grace))
    request = Request("POST", path, JSON_TYPE, body, wait, connection)
    return Call(request, read, operation=Operation("receive", "claim", queue))


def renew(
    queue: str, claim_id: str, ttl: int, grace: int, connection: Connection | None = None
) -> Call[None]:
    """Let a claim last `ttl` seconds from now; who hangs up does not wait for the answer."""
    path, body = queue_path(queue, "claims", claim_id), dumps(_times(ttl, grace))
    request = Request("PATCH", path, JSON_TYPE, body, connection=connection)
    return Call(request, lambda _: None, LOST)


def release(
    queue: str, claim_id: str, *, delay: int | None = None, ids: Sequence[str] = ()
) -> Call[None]:
    """Give back what a claim still holds, at once or later; an absent claim is no error.

    `ids` are the messages that it holds, as far as is known.
    """
    wait = None if delay is None else arguments.whole("delay", delay)
    path = with_query(queue_path(queue, "claims", claim_id), delay=wait or None)
    return tell("DELETE", path, operation=Operation("settle", "release", queue, ids=ids))


def settle(queue: str, claim_id: str, settlements: Sequence[Settlement]) -> Call[Sequence[Settled]]:
    """Settle messages of a claim; one result for each, in their order."""

    def read(response: Response) -> Sequence[Settled]:
        found = {entry["id"]: _SETTLED(entry) for entry in objects(response, "results")}
        return [found[one.id] for one in settlements]

    path = queue_path(queue, "claims", claim_id, "settle")
    request = Request("POST", path, JSON_TYPE, dumps(document(settlements)))
    operation = Operation("settle", "settle", queue, ids=[one.id for one in settlements])
    return Call(request, read, ABSENT, operation=operation)


def create(
    client: BaseClient, queue: str, options: ClaimOptions, connection: Connection | None
) -> Steps[Held | None]:
    """Claim messages, and wait for some; None if there is none, or if it was hung up."""
    if connection is not None and connection.over:
        return None
    if client.tracing is not None:
        options = dataclasses.replace(options, details=True)
    make = partial(claim, queue, options, connection=connection)
    poll, wait = options.poll, options.wait
    try:
        return (yield from client._until_found(make, wait, poll=poll, connection=connection))
    except Unreachable:
        if connection is not None and connection.over:
            return None
        raise


def settle_in_parts(
    client: BaseClient, queue: str, claim_id: str, settlements: Iterable[Settlement]
) -> Steps[list[Settled]]:
    """Settle messages of a claim, a page at a time; note where the server cannot."""
    settled: list[Settled] = []
    for part in chunks(settlements, client.page_size):
        try:
            settled += yield from client._exchange(settle(queue, claim_id, part))
        except Unsupported:
            client.settles = False
            raise
    return settled


def _times(ttl: int, grace: int) -> dict[str, int]:
    return {"ttl": arguments.whole("ttl", ttl), "grace": arguments.whole("grace", grace)}
