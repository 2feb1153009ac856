"""Subscriptions and their deliveries: the last attempts, what failed, another try, and a ping."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from msgspec import Struct

from zaqar_lite.api import documents
from zaqar_lite.api.render import instant, next_page
from zaqar_lite.api.request import NO_CONTENT, Parameter, Refused, Request, Response, warning
from zaqar_lite.api.resources import Resource
from zaqar_lite.api.routes import DETAILS, LIMIT, MARKER, route
from zaqar_lite.domain.errors import Conflict, Invalid
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.subscriptions import (
    Subscription,
    SubscriptionDraft,
    parse_draft,
    shown_options,
)
from zaqar_lite.domain.topics import name_of, queue_in
from zaqar_lite.service.delivery.inspection import DeliveryInspection, Failed
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.identity.trusts import MakeTrust, Trusts
from zaqar_lite.service.subscriptions.subscriptions import Subscriptions

_ONE = "/v2/queues/{queue_name}/subscriptions/{subscription_id}"
_CHANGEABLE = ("subscriber", "ttl", "options", "disabled")


class Replay(Struct, rename={"since": "from"}):
    """The span of time of which messages are delivered again, and where the last answer ended."""

    since: str | None = None
    until: str | None = None
    marker: str | None = None


@Resource(
    *("subscription", _ONE, "subscription", "read", "manage"),
    limit="SubscriptionLimit",
    listed_as="subscriptions_get",
    detail=DETAILS,
)
@dataclass(eq=False, repr=False)
class SubscriptionActions:
    """The actions under `/v2/queues/{queue_name}/subscriptions`, deliveries included."""

    subscriptions: Subscriptions
    authorizer: Authorizer
    trusts: Trusts | None
    inspection: DeliveryInspection
    most: int

    @route(
        "POST /v2/queues/{queue_name}/subscriptions Subscription -> Subscribed",
        "subscription:create manage",
        (201, 409),
        largest_body=65_536,
        rel="subscriptions_post",
    )
    async def create_subscription(self, request: Request) -> Response:
        """Subscribe to a queue."""
        if not request.size:
            raise Invalid("Missing parameter 'subscriber': the request has no body.")
        document = _object(documents.parse(request.document))
        listens = request.listener != "" and "subscriber" not in document
        if listens:
            document["subscriber"] = request.listener
        draft = parse_draft(
            document, now_ms=self.subscriptions.clock.now_ms(), needs_subscriber=True
        )
        queue = request.queue
        self._check(request, queue, draft)
        location = (b"location", request.path.encode())
        try:
            made = await self.subscriptions.create(
                queue, draft, self._trusting(request), listens=listens
            )
        except Conflict as exc:
            raise Refused(409, "Resource conflict", str(exc), headers=(location,)) from exc
        shown = {"subscription_id": made.id}
        if made.secret is not None:
            shown["secret"] = made.secret.text
        return Response(201, shown, (location, *warning(self.inspection.doubt(draft.subscriber))))

    async def create_new(self, request: Request) -> Response:
        """Subscribe; a subscriber that is there is a conflict, whether it has confirmed or not."""
        result = await self.create_subscription(request)
        if "secret" not in result.document:
            raise Conflict("Such a subscription exists already.")
        return result

    @route(
        "PATCH /v2/queues/{queue_name}/subscriptions/{subscription_id} SubscriptionChange",
        "subscription:update manage",
        (204, 404, 409),
        largest_body=65_536,
        rel="subscription_patch",
    )
    async def update_subscription(self, request: Request) -> Response:
        """Change a subscription."""
        if not request.size:
            raise Invalid("No subscription to update.")
        document = _object(documents.parse(request.document))
        draft = parse_draft(
            document, now_ms=self.subscriptions.clock.now_ms(), needs_subscriber=False
        )
        if not any(name in document for name in _CHANGEABLE):
            raise Refused(
                400,
                "Unable to update subscription",
                f"Nothing to change: give {', '.join(_CHANGEABLE)}.",
            )
        queue = request.queue
        self._check(request, queue, draft)
        await self.subscriptions.update(
            queue, request.path_values[1], draft, self._trusting(request)
        )
        location = (b"location", request.path.encode())
        return Response(204, b"", (location, *warning(self.inspection.doubt(draft.subscriber))))

    @route(
        "PUT /v2/queues/{queue_name}/subscriptions/{subscription_id}/confirm Confirmation",
        "subscription:confirm manage",
        (204, 404),
        rel="subscription_confirm",
    )
    async def confirm_subscription(self, request: Request) -> Response:
        """Confirm a subscription, or refuse it; a signed request carries the token it was sent."""
        document = documents.parse(request.document)
        if not isinstance(document, dict):
            raise Refused(400, "Unable to confirm subscription", "The body must be an object.")
        confirmed = document.get("confirmed")
        if not isinstance(confirmed, bool):
            raise Invalid("The 'confirmed' should be boolean.")
        token = None
        if request.is_signed:
            token = document.get("token")
            if not isinstance(token, str):
                raise Invalid("A signed confirmation needs the token of the body it was sent.")
        await self.subscriptions.confirm(
            request.queue, request.path_values[1], confirmed=confirmed, token=token
        )
        return Response(204, b"", ((b"location", request.path.encode()),))

    @route(
        "POST /v2/queues/{queue_name}/subscriptions/{subscription_id}/secret -> SubscriptionSecret",
        "subscription:rotate_secret manage",
        (200, 404),
        rel="subscription_secret",
    )
    async def rotate_secret(self, request: Request) -> Response:
        """Make another secret; the one before is good for another day."""
        secret = await self.subscriptions.rotate_secret(request.queue, request.path_values[1])
        return Response(200, {"secret": secret})

    @route(
        "GET " + _ONE + "/deliveries -> Deliveries",
        "subscription:get_deliveries read",
        (200, 404),
        (Parameter("state", "DeliveryState", "'last' or 'failed'."), MARKER, LIMIT),
        rel="deliveries",
    )
    async def list_deliveries(self, request: Request) -> Response:
        """List a subscription's deliveries."""
        state = request.text("state") or "last"
        queue, subscription_id = request.queue, request.path_values[1]
        if state == "last":
            attempts = await self.inspection.attempts(queue, subscription_id)
            shown = [_attempt(attempt) for attempt in attempts]
            return Response(200, {"deliveries": shown, "links": []})
        if state != "failed":
            raise Invalid("'state' must be 'last' or 'failed'.")
        limit = request.whole("limit", None)
        failed = await self.inspection.failed(
            queue, subscription_id, marker=request.text("marker"), limit=limit
        )
        links = next_page(request, failed[-1].id if failed else None)
        shown = [_failed(one) for one in failed]
        return Response(200, {"deliveries": shown, "links": links})

    @route(
        "POST " + _ONE + "/deliveries/{delivery_id}/retry",
        "subscription:retry_delivery manage",
        (204, 404),
        rel="delivery_retry",
    )
    async def retry_delivery(self, request: Request) -> Response:
        """Deliver again."""
        _, subscription_id, delivery_id = request.path_values
        await self.inspection.retry(request.queue, subscription_id, delivery_id)
        return NO_CONTENT

    @route(
        "POST " + _ONE + "/replay Replay -> Replayed",
        "subscription:replay manage",
        (200, 404),
        rel="subscription_replay",
    )
    async def replay_messages(self, request: Request) -> Response:
        """Deliver a span of time again."""
        form = documents.read_form(request, Replay)
        replayed = await self.inspection.replay(
            request.queue,
            request.path_values[1],
            since=_instant("from", form.since),
            until=_instant("until", form.until),
            marker=form.marker,
        )
        return Response(200, {"replayed": replayed.messages, "marker": replayed.marker})

    @route(
        "POST " + _ONE + "/ping -> Pinged",
        "subscription:ping manage",
        (200, 404),
        rel="subscription_ping",
    )
    async def ping_subscription(self, request: Request) -> Response:
        """Send a test notification."""
        result = await self.inspection.ping(request.queue, request.path_values[1])
        answer = result.answer
        document = {
            "outcome": result.outcome.value,
            "status": answer.status,
            "milliseconds": result.milliseconds,
            "answer": answer.text,
            "error": answer.error,
        }
        return Response(200, document)

    def _check(self, request: Request, queue: QueueRef, draft: SubscriptionDraft) -> None:
        """Refuse that somebody gives away what they have not."""
        principal, authorizer = request.principal, self.authorizer
        authorizer.check_subscription(principal, name_of(queue), draft.options)
        authorizer.check_target(principal, queue_in(draft.subscriber))

    def _trusting(self, request: Request) -> MakeTrust | None:
        """What makes a trust from the client; None without a token of Keystone."""
        token = request.headers.get(b"x-auth-token")
        if self.trusts is None or token is None:
            return None
        return partial(self.trusts.make, request.principal, token.decode("latin-1"))

    async def page(
        self, request: Request, marker: str | None, limit: int
    ) -> Sequence[Subscription]:
        """Read some subscriptions of the queue."""
        return await self.subscriptions.page(request.queue, marker=marker, limit=limit)

    async def find(self, request: Request) -> Subscription:
        """Read a subscription."""
        return await self.subscriptions.get(request.queue, request.path_values[1])

    async def remove(self, request: Request) -> None:
        """End a subscription."""
        await self.subscriptions.delete(request.queue, request.path_values[1])

    def shown(self, subscription: Subscription, *, detailed: bool) -> dict[str, Any]:
        """Write a subscription with Zaqar's keys and no others, unless details are asked for."""
        now = self.subscriptions.clock.now_ms()
        shown: dict[str, Any] = {
            "id": subscription.id,
            "source": name_of(subscription.queue),
            "subscriber": subscription.subscriber,
            "ttl": subscription.ttl,
            "age": max(0, now - subscription.renewed_at) // 1000,
            "options": shown_options(subscription.options),
            "confirmed": subscription.confirmed,
        }
        if detailed:
            off = subscription.disabled
            shown["created"] = instant(subscription.created_at)
            shown["disabled"] = (
                None if off is None else {"reason": off.reason, "at": instant(off.at)}
            )
        return shown


def _object(document: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    if not isinstance(document, dict):
        raise Invalid("Subscriptions must be a dict.")
    return document


def _instant(name: str, value: str | None) -> int | None:
    """An instant of a body in milliseconds; one without a zone is UTC."""
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return round(at.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Invalid(f"'{name}' must be an instant, such as 2026-11-22T10:00:00Z.") from None


def _attempt(attempt: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(attempt)
    next_at = shown.pop("next_at")
    shown["at"] = instant(shown["at"])
    shown["next"] = None if next_at is None else instant(next_at)
    return shown


def _failed(failed: Failed) -> dict[str, Any]:
    return {
        "id": failed.id,
        "message_id": failed.delivery.id,
        "at": instant(failed.failed_at),
        "attempts": failed.delivery.attempts,
        "reason": failed.delivery.reason,
        "message": orjson.Fragment(bytes(failed.delivery.payload)),
    }
