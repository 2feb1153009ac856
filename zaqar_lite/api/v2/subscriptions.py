"""Subscriptions: make, list, read, change, delete, confirm, and give another secret."""

from functools import partial
from typing import Any

from zaqar_lite.api import documents, query
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import NO_CONTENT, HttpError, Request, Response
from zaqar_lite.api.render import instant, to_json
from zaqar_lite.domain.errors import Conflict, Invalid
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.subscriptions import (
    Subscription,
    SubscriptionDraft,
    parse_draft,
    shown_options,
)
from zaqar_lite.domain.topics import name_of, queue_in
from zaqar_lite.service.identity.authority import Authority
from zaqar_lite.service.identity.trusts import MakeTrust, Trusts
from zaqar_lite.service.subscriptions import Subscriptions

DEFAULT_LIMIT = 10
UNABLE_TO_UPDATE = "Unable to update subscription"
UNABLE_TO_CONFIRM = "Unable to confirm subscription"
_CHANGEABLE = ("subscriber", "ttl", "options", "disabled")


class SubscriptionHandlers:
    """The handlers under `/v2/queues/{queue_name}/subscriptions`."""

    def __init__(
        self, subscriptions: Subscriptions, authority: Authority, trusts: Trusts | None
    ) -> None:
        self._subscriptions = subscriptions
        self._trusts = trusts
        self._authority = authority

    async def create(self, request: Request) -> Response:
        """Subscribe to a queue."""
        if not request.content_length:
            raise Invalid("No subscription to create.")
        document = _object(documents.parse(await documents.read(request)))
        listens = request.listener != "" and "subscriber" not in document
        if listens:
            document["subscriber"] = request.listener
        draft = parse_draft(document, now_ms=self._subscriptions.now_ms(), needs_subscriber=True)
        queue = queue_of(request)
        self._check(request, queue, draft)
        location = (b"location", request.path.encode())
        try:
            made = await self._subscriptions.create(
                queue, draft, self._trusting(request), listens=listens
            )
        except Conflict as exc:
            raise HttpError(409, "Resource conflict", str(exc), headers=(location,)) from exc
        shown = {"subscription_id": made.id}
        if made.secret is not None:
            shown["secret"] = made.secret
        return Response(201, to_json(shown), (location,))

    async def list_subscriptions(self, request: Request) -> Response:
        """List a queue's subscriptions."""
        found = query.parameters(request)
        details = query.boolean(found, "details")
        limit = query.whole(found, "limit", DEFAULT_LIMIT)
        page = await self._subscriptions.page(
            queue_of(request), marker=query.text(found, "marker"), limit=limit
        )
        links = []
        if page:
            given = [(name, found[name][-1]) for name in ("limit", "details") if name in found]
            pairs: list[tuple[str, str]] = [*given, ("marker", page[-1].id)]
            links = [{"rel": "next", "href": query.link(request.path, pairs)}]
        shown = [self._shown(subscription, details=details) for subscription in page]
        return Response(200, to_json({"subscriptions": shown, "links": links}))

    async def get(self, request: Request) -> Response:
        """Read a subscription."""
        details = query.boolean(query.parameters(request), "details")
        found = await self._subscriptions.get(queue_of(request), request.path_values[1])
        return Response(200, to_json(self._shown(found, details=details)))

    async def update(self, request: Request) -> Response:
        """Change a subscription."""
        if not request.content_length:
            raise Invalid("No subscription to update.")
        document = _object(documents.parse(await documents.read(request)))
        draft = parse_draft(document, now_ms=self._subscriptions.now_ms(), needs_subscriber=False)
        if not any(name in document for name in _CHANGEABLE):
            raise HttpError(
                400, UNABLE_TO_UPDATE, f"Nothing to change: give {', '.join(_CHANGEABLE)}."
            )
        queue = queue_of(request)
        self._check(request, queue, draft)
        await self._subscriptions.update(
            queue, request.path_values[1], draft, self._trusting(request)
        )
        return Response(204, b"", ((b"location", request.path.encode()),))

    async def delete(self, request: Request) -> Response:
        """End a subscription."""
        await self._subscriptions.delete(queue_of(request), request.path_values[1])
        return NO_CONTENT

    async def confirm(self, request: Request) -> Response:
        """Confirm a subscription, or refuse it; a signed request carries the token it was sent."""
        document = documents.parse(await documents.read(request))
        if not isinstance(document, dict):
            raise HttpError(400, UNABLE_TO_CONFIRM, "The body must be an object.")
        confirmed = document.get("confirmed")
        if not isinstance(confirmed, bool):
            raise Invalid("The 'confirmed' should be boolean.")
        token = None
        if b"url-signature" in request.headers:
            token = document.get("token")
            if not isinstance(token, str):
                raise Invalid("A signed confirmation needs the token of the body it was sent.")
        await self._subscriptions.confirm(
            queue_of(request), request.path_values[1], confirmed=confirmed, token=token
        )
        return Response(204, b"", ((b"location", request.path.encode()),))

    async def rotate_secret(self, request: Request) -> Response:
        """Make another secret; the one before is good for another day."""
        secret = await self._subscriptions.rotate_secret(queue_of(request), request.path_values[1])
        return Response(200, to_json({"secret": secret}))

    def _check(self, request: Request, queue: QueueRef, draft: SubscriptionDraft) -> None:
        """Refuse that somebody gives away what they have not."""
        principal, authority = request.principal, self._authority
        authority.check_subscription(principal, name_of(queue), draft.options)
        authority.check_target(principal, queue_in(draft.subscriber))

    def _trusting(self, request: Request) -> MakeTrust | None:
        """What makes a trust from who asks; None without a token of Keystone."""
        token = request.headers.get(b"x-auth-token")
        if self._trusts is None or token is None:
            return None
        return partial(self._trusts.make, request.principal, token.decode("latin-1"))

    def _shown(self, subscription: Subscription, *, details: bool) -> dict[str, Any]:
        """A subscription with Zaqar's keys and no others, unless `details` are asked for."""
        now = self._subscriptions.now_ms()
        shown: dict[str, Any] = {
            "id": subscription.id,
            "source": name_of(subscription.queue),
            "subscriber": subscription.subscriber,
            "ttl": subscription.ttl,
            "age": max(0, now - subscription.renewed_at) // 1000,
            "options": shown_options(subscription.options),
            "confirmed": subscription.confirmed,
        }
        if details:
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
