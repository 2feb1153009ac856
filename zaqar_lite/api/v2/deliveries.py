"""Deliveries of a subscription: the last attempts, what failed, another try, and a ping."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from zaqar_lite.api import documents, query
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import NO_CONTENT, Request, Response
from zaqar_lite.api.render import instant, to_json
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.service.delivery_reports import DeliveryReports, Failed

DEFAULT_LIMIT = 10


class DeliveryHandlers:
    """The handlers under `.../subscriptions/{subscription_id}` that are about deliveries."""

    def __init__(self, reports: DeliveryReports) -> None:
        self._reports = reports

    async def list_deliveries(self, request: Request) -> Response:
        """List the last attempts, or what could not be delivered."""
        found = query.parameters(request)
        state = query.text(found, "state") or "last"
        queue, subscription_id = queue_of(request), request.path_values[1]
        if state == "last":
            attempts = await self._reports.attempts(queue, subscription_id)
            shown = [_attempt(attempt) for attempt in attempts]
            return Response(200, to_json({"deliveries": shown, "links": []}))
        if state != "failed":
            raise Invalid("'state' must be 'last' or 'failed'.")
        limit = query.whole(found, "limit", DEFAULT_LIMIT)
        failed = await self._reports.failed(
            queue, subscription_id, marker=query.text(found, "marker"), limit=limit
        )
        links = []
        if failed:
            pairs = [("state", state), ("limit", str(limit)), ("marker", failed[-1].id)]
            links = [{"rel": "next", "href": query.link(request.path, pairs)}]
        shown = [_failed(one) for one in failed]
        return Response(200, to_json({"deliveries": shown, "links": links}))

    async def retry(self, request: Request) -> Response:
        """Deliver again."""
        _, subscription_id, delivery_id = request.path_values
        await self._reports.retry(queue_of(request), subscription_id, delivery_id)
        return NO_CONTENT

    async def replay(self, request: Request) -> Response:
        """Deliver again what was posted in a span of time."""
        document = documents.parse(await documents.read(request)) if request.content_length else {}
        if not isinstance(document, dict):
            raise Invalid("The body must be an object with 'from', 'until' and 'marker'.")
        marker = document.get("marker")
        if marker is not None and not isinstance(marker, str):
            raise Invalid("'marker' must be a text.")
        replayed = await self._reports.replay(
            queue_of(request),
            request.path_values[1],
            since=_instant("from", document.get("from")),
            until=_instant("until", document.get("until")),
            marker=marker,
        )
        return Response(200, to_json({"replayed": replayed.messages, "marker": replayed.marker}))

    async def ping(self, request: Request) -> Response:
        """Send a test notification and answer what came back."""
        result = await self._reports.ping(queue_of(request), request.path_values[1])
        answer = result.answer
        document = {
            "outcome": result.fate.value,
            "status": answer.status,
            "milliseconds": result.milliseconds,
            "answer": answer.text,
            "error": answer.error,
        }
        return Response(200, to_json(document))


def _instant(name: str, value: object) -> int | None:
    """An instant of a body in milliseconds; one without a zone is UTC."""
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value if isinstance(value, str) else "")
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
        "message_id": failed.message_id,
        "at": instant(failed.failed_at),
        "attempts": failed.attempts,
        "reason": failed.reason,
        "message": orjson.Fragment(failed.payload),
    }
