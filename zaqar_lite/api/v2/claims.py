"""Claims: create, read, renew and release."""

from collections.abc import Sequence
from functools import partial

from zaqar_lite.api import documents
from zaqar_lite.api.call import NO_CONTENT, Call, Parameter, Result
from zaqar_lite.api.patience import Patience
from zaqar_lite.api.render import Renderer
from zaqar_lite.api.routes import CLAIM_LIMIT, DETAILS, LARGE, WAIT, route
from zaqar_lite.domain.models import Message
from zaqar_lite.service.claims import Claims

DEFAULT_LIMIT = 10


class ClaimActions:
    """The actions under `/v2/queues/{queue_name}/claims`."""

    def __init__(self, claims: Claims, patience: Patience, renderer: Renderer) -> None:
        self._claims = claims
        self._patience = patience
        self._renderer = renderer

    @route(
        "POST /v2/queues/{queue_name}/claims Claim -> Claimed",
        "claims:create receive",
        (201, 204, 429),
        (CLAIM_LIMIT, LARGE, WAIT, DETAILS),
        hot=True,
    )
    async def claim_messages(self, call: Call) -> Result:
        """Claim messages; 204 when there is none to claim."""
        limit = call.whole("limit", DEFAULT_LIMIT)
        details, large = call.flag("details"), call.flag("large")
        seconds = self._patience.seconds(call)
        document = await documents.sent_object(call) if call.size else {}
        queue = call.queue
        ttl, grace = documents.integer(document, "ttl"), documents.integer(document, "grace")

        async def ask() -> tuple[str, Sequence[Message]] | None:
            return await self._claims.create(
                queue,
                limit=limit,
                ttl=ttl,
                grace=grace,
                client_id=call.client_id,
                details=details,
                large=large,
            )

        async def undo(claimed: tuple[str, Sequence[Message]]) -> None:
            await self._claims.release(queue, claimed[0])

        if seconds:
            claimed = await self._patience.ask(call, queue, seconds, ask, undo=undo)
        else:
            claimed = await ask()
        if claimed is None:
            return NO_CONTENT
        claim_id, messages = claimed
        path = f"/v2/queues/{queue.name}"
        shown = self._renderer.messages(path, messages, details=details)
        location = f"{path}/claims/{claim_id}".encode()
        headers = ((b"location", location),)
        return Result(201, {"messages": shown}, headers, undo=partial(undo, claimed))

    @route(
        "GET /v2/queues/{queue_name}/claims/{claim_id} -> ClaimShown",
        "claims:get receive",
        (200, 404),
        (DETAILS,),
        hot=True,
    )
    async def show_claim(self, call: Call) -> Result:
        """Show a claim."""
        queue, claim_id = call.queue, call.path_values[1]
        details = call.flag("details")
        claim = await self._claims.get(queue, claim_id, details=details)
        path = f"/v2/queues/{queue.name}"
        shown = {
            "age": claim.age_ms // 1000,
            "ttl": claim.ttl_ms // 1000,
            "href": f"{path}/claims/{claim_id}",
            "messages": self._renderer.messages(path, claim.messages, details=details),
        }
        return Result(200, shown)

    @route(
        "PATCH /v2/queues/{queue_name}/claims/{claim_id} Claim",
        "claims:update receive",
        (204, 404),
        hot=True,
    )
    async def renew_claim(self, call: Call) -> Result:
        """Renew a claim."""
        document = await documents.sent_object(call)
        await self._claims.renew(
            call.queue,
            call.path_values[1],
            ttl=documents.integer(document, "ttl"),
            grace=documents.integer(document, "grace"),
        )
        return NO_CONTENT

    @route(
        "DELETE /v2/queues/{queue_name}/claims/{claim_id}",
        "claims:delete receive",
        (204,),
        (Parameter("delay", "Delay", "Seconds until its messages are ready again."),),
        hot=True,
    )
    async def release_claim(self, call: Call) -> Result:
        """Release a claim; its messages can be claimed at once, or after a delay."""
        delay = call.whole("delay", 0)
        await self._claims.release(call.queue, call.path_values[1], delay=delay)
        return NO_CONTENT
