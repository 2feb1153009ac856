"""Claims: take messages for a while, keep them longer, give them back."""

from collections.abc import Sequence
from numbers import Integral

from zaqar_lite.client import arguments, encoding
from zaqar_lite.client.bodies import dumps
from zaqar_lite.client.endpoints.messages import read_messages
from zaqar_lite.client.endpoints.paths import large, queue_path, with_query
from zaqar_lite.client.endpoints.resources import JSON_TYPE, nothing
from zaqar_lite.client.errors import ClaimLost, Unsupported
from zaqar_lite.client.line import Line
from zaqar_lite.client.models import Held
from zaqar_lite.client.records import reader
from zaqar_lite.client.settlements import Settled, Settlement, document
from zaqar_lite.client.wire import Call, Operation, Request, Response

_SETTLED = reader(Settled)
LOST = {404: ClaimLost}
ABSENT = {404: Unsupported, 405: Unsupported}


def claim(
    queue: str,
    *,
    limit: int = 10,
    ttl: int = 300,
    grace: int = 60,
    details: bool = False,
    raw: bool = False,
    wait: int = 0,
    line: Line | None = None,
) -> Call[Held | None]:
    """Claim up to `limit` messages for `ttl` seconds; None when there is none to have."""

    def read(response: Response) -> Held | None:
        if response.status == 204:
            return None
        messages = read_messages(queue, response, raw=raw)
        location = response.headers.get("location", "")
        claim_id = location.rpartition("/")[2] or (messages[0].claim_id if messages else None)
        if not claim_id:
            raise encoding.bad_answer(response, "the claim has no id")
        return Held(claim_id, queue, ttl, 0, messages)

    arguments.takes("limit", limit, Integral)
    path = with_query(
        queue_path(queue, "claims"),
        limit=limit,
        large=large(limit),
        details=details or None,
        wait=wait or None,
    )
    request = Request("POST", path, JSON_TYPE, _times(ttl, grace), wait, line)
    return Call(request, read, operation=Operation("receive", "claim", queue))


def get_claim(queue: str, claim_id: str, *, details: bool = False, raw: bool = False) -> Call[Held]:
    """Read a claim and the messages that it still holds."""

    def read(response: Response) -> Held:
        found = encoding.document(response)
        messages = read_messages(queue, response, raw=raw)
        return Held(claim_id, queue, found["ttl"], found["age"], messages)

    path = with_query(queue_path(queue, "claims", claim_id), details=details or None)
    return Call(Request("GET", path, {}), read, LOST)


def renew(queue: str, claim_id: str, *, ttl: int = 300, grace: int = 60) -> Call[None]:
    """Let a claim last `ttl` seconds from now."""
    request = Request("PATCH", queue_path(queue, "claims", claim_id), JSON_TYPE, _times(ttl, grace))
    return Call(request, nothing, LOST)


def release(
    queue: str, claim_id: str, *, delay: int | None = None, ids: Sequence[str] = ()
) -> Call[None]:
    """Give back what a claim still holds, at once or later; an absent claim is no error.

    `ids` are the messages that it holds, as far as is known.
    """
    wait = None if delay is None else arguments.whole("delay", delay)
    path = with_query(queue_path(queue, "claims", claim_id), delay=wait or None)
    operation = Operation("settle", "release", queue, ids=ids)
    return Call(Request("DELETE", path, {}), nothing, operation=operation)


def settle(queue: str, claim_id: str, settlements: Sequence[Settlement]) -> Call[Sequence[Settled]]:
    """Settle messages of a claim; one result for each, in their order."""

    def read(response: Response) -> Sequence[Settled]:
        found = {entry["id"]: _SETTLED(entry) for entry in encoding.objects(response, "results")}
        return [found[one.id] for one in settlements]

    path = queue_path(queue, "claims", claim_id, "settle")
    request = Request("POST", path, JSON_TYPE, dumps(document(settlements)))
    operation = Operation("settle", "settle", queue, ids=[one.id for one in settlements])
    return Call(request, read, ABSENT, operation=operation)


def _times(ttl: int, grace: int) -> bytes:
    return b'{"ttl":%d,"grace":%d}' % (
        arguments.whole("ttl", ttl),
        arguments.whole("grace", grace),
    )
