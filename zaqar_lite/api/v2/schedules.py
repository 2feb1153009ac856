"""Schedules: make, show, change, end and list them, and fire one now."""

import asyncio
from functools import partial
from typing import Any

import msgspec
import orjson

from zaqar_lite.api import documents
from zaqar_lite.api.call import NO_CONTENT, Call, Parameter, Result
from zaqar_lite.api.render import instant, next_page
from zaqar_lite.api.routes import MARKER, route
from zaqar_lite.domain.limits import MAX_BODY_DEPTH
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.schedules.schedule import Plan, Schedule
from zaqar_lite.service.schedules.schedules import Schedules

_plan = msgspec.json.Decoder(Plan)
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MOST = 100
DEFAULT_LIMIT = 20


class ScheduleActions:
    """The actions of `/v2/schedules`."""

    def __init__(self, schedules: Schedules, authority: Authorizer) -> None:
        self._schedules = schedules
        self._authority = authority

    @route(
        "PUT /v2/schedules/{schedule_name} Schedule -> Schedule",
        "schedules:create manage",
        (200, 201, 409),
        largest_body=65_536,
    )
    async def put_schedule(self, call: Call) -> Result:
        """Make or replace a schedule."""
        plan = await documents.sent(call, _plan, deepest=MAX_BODY_DEPTH)
        self._authority.check_target(call.principal, plan.queue)
        name = call.path_values[0]
        schedule, is_new = await self._schedules.put(call.project, name, plan)
        return Result(201 if is_new else 200, self._shown(schedule))

    @route("GET /v2/schedules/{schedule_name} -> Schedule", "schedules:get read", (200, 404))
    async def show_schedule(self, call: Call) -> Result:
        """Show a schedule."""
        schedule = await self._schedules.get(call.project, call.path_values[0])
        return Result(200, self._shown(schedule))

    @route(
        "PATCH /v2/schedules/{schedule_name} Schedule -> Schedule",
        "schedules:update manage",
        (200, 404, 409),
        largest_body=65_536,
    )
    async def change_schedule(self, call: Call) -> Result:
        """Change some of a schedule; null takes one away."""
        changes = await documents.sent(call, _parts, deepest=MAX_BODY_DEPTH)

        def apply(plan: Plan) -> Plan:
            merged = {**_parts.decode(msgspec.json.encode(plan)), **changes}
            # The body may be null; a null in place of any other field takes that away.
            kept = {
                name: raw for name, raw in merged.items() if name == "body" or bytes(raw) != b"null"
            }
            changed = documents.decode(_plan, msgspec.json.encode(kept))
            self._authority.check_target(call.principal, changed.queue)
            return changed

        schedule = await self._schedules.change(call.project, call.path_values[0], apply)
        return Result(200, self._shown(schedule))

    @route("DELETE /v2/schedules/{schedule_name}", "schedules:delete manage", (204,))
    async def delete_schedule(self, call: Call) -> Result:
        """End a schedule."""
        await self._schedules.delete(call.project, call.path_values[0])
        return NO_CONTENT

    @route(
        "GET /v2/schedules -> Schedules",
        "schedules:get_all read",
        (200,),
        (MARKER, Parameter("limit", "KeyLimit", "How many schedules to answer at most.")),
    )
    async def list_schedules(self, call: Call) -> Result:
        """List schedules."""
        limit = call.limit(DEFAULT_LIMIT, _MOST)
        page = await self._schedules.page(call.project, call.text("marker"), limit)
        marker = page[-1].name if page else ""
        links = next_page(call.path, page, ("limit", str(limit)), ("marker", marker))
        shown = []
        for schedule in page:
            shown.append(self._shown(schedule))
            await asyncio.sleep(0)  # the next instants of a rare cron expression take 2 ms
        return Result(200, {"schedules": shown, "links": links})

    @route(
        "POST /v2/schedules/{schedule_name}/fire -> Fired", "schedules:fire manage", (201, 404, 413)
    )
    async def fire_schedule(self, call: Call) -> Result:
        """Post a schedule's message now."""
        may_post = partial(self._authority.check_target, call.principal)
        message_id = await self._schedules.fire(call.project, call.path_values[0], may_post)
        return Result(201, {"message_id": message_id})

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
