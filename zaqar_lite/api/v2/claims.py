"""Claims: create, read, renew and release."""

from collections.abc import Sequence
from functools import partial

from zaqar_lite.api import documents, query
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import NO_CONTENT, Request, Response
from zaqar_lite.api.patience import Patience
from zaqar_lite.api.render import Renderer, to_json
from zaqar_lite.domain.models import Message
from zaqar_lite.service.claims import Claims

DEFAULT_LIMIT = 10


class ClaimHandlers:
    """The handlers under `/v2/queues/{queue_name}/claims`."""

    def __init__(self, claims: Claims, patience: Patience, renderer: Renderer) -> None:
        self._claims = claims
        self._patience = patience
        self._renderer = renderer

    async def create(self, request: Request) -> Response:
        """Claim messages; 204 when there is none to claim."""
        found = query.parameters(request)
        limit = query.whole(found, "limit", DEFAULT_LIMIT)
        details = query.boolean(found, "details")  # checked before anything is claimed
        seconds = self._patience.seconds(found)
        document = {}
        if request.content_length:
            document = documents.parse_object(await documents.read(request))
        queue = queue_of(request)
        ttl, grace = documents.integer(document, "ttl"), documents.integer(document, "grace")

        async def ask() -> tuple[str, Sequence[Message]] | None:
            return await self._claims.create(
                queue,
                limit=limit,
                ttl=ttl,
                grace=grace,
                client_id=request.client_id,
                details=details,
            )

        async def undo(claimed: tuple[str, Sequence[Message]]) -> None:
            await self._claims.release(queue, claimed[0])

        if seconds:
            claimed = await self._patience.ask(request, queue, seconds, ask, undo=undo)
        else:
            claimed = await ask()
        if claimed is None:
            return NO_CONTENT
        claim_id, messages = claimed
        path = f"/v2/queues/{queue.name}"
        shown = self._renderer.messages(path, messages, details=details)
        location = f"{path}/claims/{claim_id}".encode()
        headers = ((b"location", location),)
        return Response(201, to_json({"messages": shown}), headers, undo=partial(undo, claimed))

    async def get(self, request: Request) -> Response:
        """Read a claim and the messages it holds."""
        queue, claim_id = queue_of(request), request.path_values[1]
        details = query.boolean(query.parameters(request), "details")
        claim = await self._claims.get(queue, claim_id, details=details)
        path = f"/v2/queues/{queue.name}"
        shown = {
            "age": claim.age_ms // 1000,
            "ttl": claim.ttl_ms // 1000,
            "href": f"{path}/claims/{claim_id}",
            "messages": self._renderer.messages(path, claim.messages, details=details),
        }
        return Response(200, to_json(shown))

    async def renew(self, request: Request) -> Response:
        """Let a claim live longer."""
        document = documents.parse_object(await documents.read(request))
        await self._claims.renew(
            queue_of(request),
            request.path_values[1],
            ttl=documents.integer(document, "ttl"),
            grace=documents.integer(document, "grace"),
        )
        return NO_CONTENT

    async def release(self, request: Request) -> Response:
        """Release a claim; its messages can be claimed at once, or after a delay."""
        delay = query.whole(query.parameters(request), "delay", 0)
        await self._claims.release(queue_of(request), request.path_values[1], delay=delay)
        return NO_CONTENT
