"""Settling single messages of a claim: one by its href, or many in one request."""

from zaqar_lite.api import documents, query
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import NO_CONTENT, Request, Response
from zaqar_lite.api.render import to_json
from zaqar_lite.api.settlements import parse_many, parse_one
from zaqar_lite.domain.models import Act, Outcome, Settlement
from zaqar_lite.service.settling import Settling, explain

_STATUS = {
    Outcome.DONE: 204,
    Outcome.NOT_FOUND: 404,
    Outcome.LAPSED: 409,
    Outcome.HELD: 403,
    Outcome.NO_TARGET: 409,
}


class SettlingHandlers:
    """The handlers that settle messages of a claim."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling

    async def settle_one(self, request: Request) -> Response:
        """Release, extend or give up one message of a claim."""
        claim_id = query.text(query.parameters(request), "claim_id") or ""
        document = documents.parse_object(await documents.read(request))
        settlement = parse_one(request.path_values[1], document)
        await self._settling.settle_one(queue_of(request), claim_id, settlement)
        return NO_CONTENT

    async def settle_many(self, request: Request) -> Response:
        """Settle messages of a claim; one result for each."""
        document = documents.parse_object(await documents.read(request))
        settlements = parse_many(document)
        outcomes = await self._settling.settle(
            queue_of(request), request.path_values[1], settlements
        )
        results = [
            _result(settlement, outcome)
            for settlement, outcome in zip(settlements, outcomes, strict=True)
        ]
        return Response(200, to_json({"results": results}))


def _result(settlement: Settlement, outcome: Outcome) -> dict[str, object]:
    """One message's result: 204 when it is done; a message to delete that is gone is done."""
    status = _STATUS[outcome]
    if settlement.act is Act.ACK and outcome is Outcome.NOT_FOUND:
        status = 204
    shown: dict[str, object] = {"id": settlement.message_id, "status": status}
    if status != 204:
        shown["outcome"] = outcome.value
        shown["description"] = explain(outcome, settlement)
    return shown
