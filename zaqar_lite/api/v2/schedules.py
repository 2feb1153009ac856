"""Schedules: make, show, change, end and list them, and fire one now."""

from typing import Any

import msgspec
import orjson

from zaqar_lite.api import documents, query
from zaqar_lite.api.http import NO_CONTENT, Request, Response
from zaqar_lite.api.render import instant, to_json
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.service.identity.authority import Authority
from zaqar_lite.service.schedule import Plan, Schedule
from zaqar_lite.service.schedules import Schedules

_plan = msgspec.json.Decoder(Plan)
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MOST = 100
DEFAULT_LIMIT = 20


class ScheduleHandlers:
    """The handlers of `/v2/schedules`."""

    def __init__(self, schedules: Schedules, authority: Authority) -> None:
        self._schedules = schedules
        self._authority = authority

    async def put(self, request: Request) -> Response:
        """Make a schedule, or put another one in its place."""
        body = await documents.read(request)
        documents.parse_object(body)
        plan = documents.decode(_plan, body)
        self._authority.check_target(request.principal, plan.queue)
        name = request.path_values[0]
        schedule, is_new = await self._schedules.put(request.project, name, plan)
        return Response(201 if is_new else 200, to_json(self._shown(schedule)))

    async def get(self, request: Request) -> Response:
        """Show a schedule."""
        schedule, _ = await self._schedules.load(request.project, request.path_values[0])
        return Response(200, to_json(self._shown(schedule)))

    async def change(self, request: Request) -> Response:
        """Change some fields; null takes one away."""
        body = await documents.read(request)
        documents.parse_object(body)
        changes = _parts.decode(body)

        def apply(plan: Plan) -> Plan:
            merged = {**_parts.decode(msgspec.json.encode(plan)), **changes}
            kept = {key: raw for key, raw in merged.items() if key == "body" or raw != b"null"}
            changed = documents.decode(_plan, msgspec.json.encode(kept))
            self._authority.check_target(request.principal, changed.queue)
            return changed

        schedule = await self._schedules.change(request.project, request.path_values[0], apply)
        return Response(200, to_json(self._shown(schedule)))

    async def delete(self, request: Request) -> Response:
        """End a schedule."""
        await self._schedules.delete(request.project, request.path_values[0])
        return NO_CONTENT

    async def list_schedules(self, request: Request) -> Response:
        """List the project's schedules, by name."""
        found = query.parameters(request)
        limit = query.whole(found, "limit", DEFAULT_LIMIT)
        if not 1 <= limit <= _MOST:
            raise Invalid(f"Limit must be at least 1 and no greater than {_MOST}.")
        page = await self._schedules.page(request.project, query.text(found, "marker"), limit)
        links = []
        if page:
            pairs = [("limit", str(limit)), ("marker", page[-1].name)]
            links = [{"rel": "next", "href": query.link(request.path, pairs)}]
        shown = [self._shown(schedule) for schedule in page]
        return Response(200, to_json({"schedules": shown, "links": links}))

    async def fire(self, request: Request) -> Response:
        """Post a schedule's message now."""
        name = request.path_values[0]
        schedule, _ = await self._schedules.load(request.project, name)
        self._authority.check_target(request.principal, schedule.plan.queue)
        message_id = await self._schedules.fire(request.project, name)
        return Response(201, to_json({"message_id": message_id}))

    def _shown(self, schedule: Schedule) -> dict[str, Any]:
        plan = {
            key: orjson.Fragment(bytes(raw))
            for key, raw in _parts.decode(msgspec.json.encode(schedule.plan)).items()
        }
        return {
            "name": schedule.name,
            **plan,
            "time_zone": schedule.plan.time_zone,
            "missed": schedule.plan.missed,
            "paused": schedule.plan.paused,
            "next": [instant(at) for at in self._schedules.shown_instants(schedule)],
            "last": instant(schedule.last_at) if schedule.last_at else None,
            "created": instant(schedule.created_at),
            "counts": {
                "fired": schedule.fired,
                "missed": schedule.missed,
                "uncertain": schedule.uncertain,
                "overlapped": schedule.overlapped,
                "failed": schedule.failed,
            },
            "error": schedule.error or None,
        }
