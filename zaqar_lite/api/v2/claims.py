"""Claims: create, read, renew and release; settle their messages, one by one or many at once.

One: `{"claim": {"release_in": 30, "failed": true, "reason": "...", "detail": "..."}}`,
`{"claim": {"ttl": 600}}` or `{"claim": {"dead": true, "reason": "...", "detail": "..."}}`. A
failure without `release_in` waits as the queue's back-off says.

Many: `{"delete": [id, ...], "release": [{"id", "delay", "failed", "reason", "detail"}, ...],
"extend": [{"id", "ttl"}, ...], "dead": [{"id", "reason", "detail"}, ...]}`. Seconds everywhere;
null stands for absent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import Struct, structs

from zaqar_lite.api import documents
from zaqar_lite.api.long_polling import Polling
from zaqar_lite.api.render import Renderer
from zaqar_lite.api.request import (
    NO_CONTENT,
    SMALL_BODY,
    Parameter,
    Refused,
    Request,
    Response,
    bad_body,
)
from zaqar_lite.api.routes import CLAIM_LIMIT, DETAILS, LARGE, WAIT, route
from zaqar_lite.domain.errors import Forbidden
from zaqar_lite.domain.models import Message
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.service.claims import Claims, explain

_STATUS = {Outcome.NOT_FOUND: 404, Outcome.LAPSED: 409, Outcome.HELD: 403, Outcome.NO_TARGET: 409}
_LARGEST = 16_384
"""Bytes of one settlement: its reason and detail, of which JSON may write a character as six."""
_MANY = 1_048_576
"""Bytes: what settlements of a large claim may have together."""
_GRACE_MS = 60_000
"""How much longer than its lease an extended message lives at least."""


class Lease(Struct):
    """How long a claim lasts, and how much longer its messages live; null is for the defaults."""

    ttl: int | None = None
    grace: int | None = None


class Release(Struct, forbid_unknown_fields=True, gc=False):
    """A message that is given back: at once, or after a delay."""

    id: str
    delay: int | None = None
    failed: bool = False
    reason: str | None = None
    detail: str | None = None


class Extend(Struct, forbid_unknown_fields=True, gc=False):
    """A message whose lease is to end in `ttl` seconds."""

    id: str
    ttl: int


class Dead(Struct, forbid_unknown_fields=True, gc=False):
    """A message that is given up."""

    id: str
    reason: str | None = None
    detail: str | None = None


class Settlements(Struct, forbid_unknown_fields=True):
    """What becomes of messages of a claim; those to `delete` are done."""

    delete: list[str] = []
    release: list[Release] = []
    extend: list[Extend] = []
    dead: list[Dead] = []


class ClaimAct(Struct, forbid_unknown_fields=True, gc=False):
    """What becomes of one message of a claim: one of the first three, or `failed` alone."""

    release_in: int | None = None
    ttl: int | None = None
    dead: bool | None = None
    failed: bool | None = None
    reason: str | None = None
    detail: str | None = None


class OneSettlement(Struct, forbid_unknown_fields=True):
    """The document that settles one message."""

    claim: ClaimAct


@dataclass(eq=False, repr=False)
class ClaimActions:
    """The actions under `/v2/queues/{queue_name}/claims`, and what settles one message."""

    claims: Claims
    polling: Polling
    renderer: Renderer

    @route(
        "POST /v2/queues/{queue_name}/claims Claim -> Claimed",
        "claims:create receive",
        (201, 204, 429),
        (CLAIM_LIMIT, LARGE, WAIT, DETAILS),
        rel="post_claim",
    )
    async def claim_messages(self, request: Request) -> Response:
        """Claim messages; 204 when there is none to claim."""
        limit = request.whole("limit", None)
        details, large = request.flag("details"), request.flag("large")
        seconds = self.polling.seconds(request)
        lease = documents.read_struct(request, Lease) if request.size else Lease()
        queue = request.queue
        wanted = self.claims.request(
            limit=limit,
            ttl=lease.ttl,
            grace=lease.grace,
            client_id=request.client_id,
            details=details,
            large=large,
        )

        async def undo(claimed: tuple[str, Sequence[Message]]) -> None:
            await self.claims.release(queue, claimed[0])

        ask = partial(self.claims.create, queue, wanted)
        claimed = await self.polling.ask(request, queue, seconds, ask, undo=undo)
        if claimed is None:
            return NO_CONTENT
        claim_id, messages = claimed
        shown = self.renderer.messages(queue, messages, details=details)
        headers = ((b"location", f"{request.path}/{claim_id}".encode()),)
        return Response(201, {"messages": shown}, headers, undo=partial(undo, claimed))

    @route(
        "GET /v2/queues/{queue_name}/claims/{claim_id} -> ClaimShown",
        "claims:get receive",
        (200, 404),
        (DETAILS,),
        rel="claim",
    )
    async def show_claim(self, request: Request) -> Response:
        """Show a claim."""
        queue, claim_id = request.queue, request.path_values[1]
        details = request.flag("details")
        claim = await self.claims.get(queue, claim_id, details=details)
        shown = {
            "age": claim.age_ms // 1000,
            "ttl": claim.ttl_ms // 1000,
            "href": request.path,
            "messages": self.renderer.messages(queue, claim.messages, details=details),
        }
        return Response(200, shown)

    @route(
        "PATCH /v2/queues/{queue_name}/claims/{claim_id} Claim",
        "claims:update receive",
        (204, 404),
        rel="patch_claim",
    )
    async def renew_claim(self, request: Request) -> Response:
        """Renew a claim."""
        lease = documents.read_struct(request, Lease)
        claim_id = request.path_values[1]
        await self.claims.renew(request.queue, claim_id, ttl=lease.ttl, grace=lease.grace)
        return NO_CONTENT

    @route(
        "DELETE /v2/queues/{queue_name}/claims/{claim_id}",
        "claims:delete receive",
        (204,),
        (Parameter("delay", "Delay", "Seconds until its messages are ready again."),),
        rel="delete_claim",
    )
    async def release_claim(self, request: Request) -> Response:
        """Release a claim; its messages can be claimed at once, or after a delay."""
        delay = request.whole("delay", 0)
        await self.claims.release(request.queue, request.path_values[1], delay=delay)
        return NO_CONTENT

    async def settle_one(self, request: Request) -> Response:
        """Release, extend or give up one message of a claim."""
        claim_id = request.text("claim_id") or ""
        settlement = _parse_one(request.path_values[1], request.document)
        try:
            await self.claims.settle_one(request.queue, claim_id, settlement)
        except Forbidden as exc:
            raise Refused(403, "Unable to settle", str(exc)) from exc
        return NO_CONTENT

    @route(
        "POST /v2/queues/{queue_name}/claims/{claim_id}/settle Settlements -> Settled",
        "claims:settle receive",
        (200,),
        largest=lambda limits: (
            SMALL_BODY + max(limits.max_messages_per_claim_or_pop * _LARGEST, _MANY)
        ),
    )
    async def settle_messages(self, request: Request) -> Response:
        """Settle messages of a claim; one result for each."""
        form = documents.decode(Settlements, request.document)
        self.claims.check_count(sum(map(len, structs.astuple(form))))
        settlements = _settlements(form)
        outcomes = await self.claims.settle(request.queue, request.path_values[1], settlements)
        done = Outcome.DONE
        results = [
            {"id": settlement.message_id, "status": 204}
            if outcome is done
            else _result(settlement, outcome)
            for settlement, outcome in zip(settlements, outcomes, strict=True)
        ]
        return Response(200, {"results": results})


def _result(settlement: Settlement, outcome: Outcome) -> dict[str, object]:
    """The result of a message that was not settled; one to delete that is gone is done."""
    if settlement.act is Act.ACK and outcome is Outcome.NOT_FOUND:
        return {"id": settlement.message_id, "status": 204}
    return {
        "id": settlement.message_id,
        "status": _STATUS[outcome],
        "outcome": outcome.value,
        "description": explain(outcome, settlement),
    }


def _settlements(form: Settlements) -> list[Settlement]:
    """What is to become of each message, in the order delete, release, extend, dead."""
    found = [Settlement(one, Act.ACK) for one in form.delete]
    for gone in form.release:
        delay_ms = None if gone.delay is None else gone.delay * 1000
        found.append(
            Settlement(gone.id, Act.RELEASE, delay_ms, gone.failed, gone.reason, gone.detail)
        )
    found += [
        Settlement(one.id, Act.EXTEND, ttl_ms=one.ttl * 1000, grace_ms=_GRACE_MS)
        for one in form.extend
    ]
    found += [
        Settlement(one.id, Act.DEAD, reason=one.reason, detail=one.detail) for one in form.dead
    ]
    return found


def _parse_one(message_id: str, body: bytes) -> Settlement:
    """Read what a PATCH of a claimed message says.

    Raises:
        Refused: 400, names the field that is wrong.
    """
    act = documents.decode(OneSettlement, body).claim
    chosen = [act.release_in is not None, act.ttl is not None, act.dead is not None]
    if sum(chosen) > 1 or (not any(chosen) and act.failed is not True):
        raise bad_body(
            "claim must have exactly one of 'release_in', 'ttl' and 'dead', or \"failed\": true."
        )
    if act.ttl is not None:
        if (act.failed, act.reason, act.detail) != (None, None, None):
            raise bad_body("claim.ttl takes no other field beside it.")
        return Settlement(message_id, Act.EXTEND, ttl_ms=act.ttl * 1000, grace_ms=_GRACE_MS)
    if act.dead is not None:
        if not act.dead or act.failed is not None:
            raise bad_body("claim.dead must be true, with 'reason' and 'detail' at most.")
        return Settlement(message_id, Act.DEAD, reason=act.reason, detail=act.detail)
    delay_ms = None if act.release_in is None else act.release_in * 1000
    return Settlement(message_id, Act.RELEASE, delay_ms, act.failed is True, act.reason, act.detail)
