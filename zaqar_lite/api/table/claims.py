"""The routes of claims and of settling what they hold."""

from zaqar_lite.api.routes import SMALL_BODY, Parameter, Route
from zaqar_lite.api.table.shared import DETAILS, QUEUE, WAIT
from zaqar_lite.api.v2.claims import ClaimHandlers
from zaqar_lite.api.v2.settling import SettlingHandlers
from zaqar_lite.domain.identity import Access, Verb
from zaqar_lite.domain.limits import Limits

_LARGEST_SETTLEMENT = 16_384
"""Bytes of one: its reason and detail, each character of which JSON may write with six."""
_CLAIM_LIMIT = Parameter("limit", "ClaimLimit", "How many messages to claim at most.")
_CLAIM = QUEUE + "/claims/{claim_id}"


def claim_routes(
    handlers: ClaimHandlers, settling: SettlingHandlers, limits: Limits
) -> tuple[Route, ...]:
    """The routes of claims; settling is there where the store can."""
    largest = SMALL_BODY + limits.max_messages_per_claim_or_pop * _LARGEST_SETTLEMENT
    routes = [
        Route(
            "POST",
            QUEUE + "/claims",
            handlers.create,
            "claim_messages",
            "Claim messages",
            (201, 204, 400, 413, 429, 503),
            Access("claims:create", Verb.RECEIVE),
            (_CLAIM_LIMIT, WAIT, DETAILS),
            body="Claim",
            answer="Claimed",
            hot=True,
        ),
        Route(
            "GET",
            _CLAIM,
            handlers.get,
            "show_claim",
            "Show a claim",
            (200, 400, 404, 503),
            Access("claims:get", Verb.RECEIVE),
            (DETAILS,),
            answer="ClaimShown",
            hot=True,
        ),
        Route(
            "PATCH",
            _CLAIM,
            handlers.renew,
            "renew_claim",
            "Renew a claim",
            (204, 400, 404, 413, 503),
            Access("claims:update", Verb.RECEIVE),
            body="Claim",
            hot=True,
        ),
        Route(
            "DELETE",
            _CLAIM,
            handlers.release,
            "release_claim",
            "Release a claim",
            (204, 400, 503),
            Access("claims:delete", Verb.RECEIVE),
            (Parameter("delay", "Delay", "Seconds until its messages are ready again."),),
            hot=True,
        ),
    ]
    if settling.works:
        routes.append(
            Route(
                "POST",
                _CLAIM + "/settle",
                settling.settle_many,
                "settle_messages",
                "Settle messages of a claim",
                (200, 400, 413, 503),
                Access("claims:settle", Verb.RECEIVE),
                body="Settlements",
                answer="Settled",
                largest_body=largest,
                hot=True,
            )
        )
    return tuple(routes)
