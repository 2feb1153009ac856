"""Settling single messages of a claim: one by its href, or many in one request."""

from zaqar_lite.api import documents, query
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import NO_CONTENT, HttpError, Request, Response
from zaqar_lite.api.render import to_json
from zaqar_lite.api.settlements import parse_many, parse_one
from zaqar_lite.domain.errors import Forbidden
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.service.settling import Settling, explain

_STATUS = {
    Outcome.NOT_FOUND: 404,
    Outcome.LAPSED: 409,
    Outcome.HELD: 403,
    Outcome.NO_TARGET: 409,
}


class SettlingHandlers:
    """The handlers that settle messages of a claim."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling

    @property
    def works(self) -> bool:
        """Whether the store settles single messages."""
        return self._settling.works

    async def settle_one(self, request: Request) -> Response:
        """Release, extend or give up one message of a claim."""
        claim_id = query.text(query.parameters(request), "claim_id") or ""
        settlement = parse_one(request.path_values[1], await documents.read(request))
        try:
            await self._settling.settle_one(queue_of(request), claim_id, settlement)
        except Forbidden as exc:
            raise HttpError(403, "Unable to settle", str(exc)) from exc
        return NO_CONTENT

    async def settle_many(self, request: Request) -> Response:
        """Settle messages of a claim; one result for each."""
        settlements = parse_many(await documents.read(request))
        outcomes = await self._settling.settle(
            queue_of(request), request.path_values[1], settlements
        )
        done = Outcome.DONE
        results = [
            {"id": settlement.message_id, "status": 204}
            if outcome is done
            else _result(settlement, outcome)
            for settlement, outcome in zip(settlements, outcomes, strict=True)
        ]
        return Response(200, to_json({"results": results}))


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
