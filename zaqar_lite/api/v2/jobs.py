"""Jobs: put many dead letters back; cancel, move or fire many delayed messages. And schedules."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import orjson

from zaqar_lite.api import documents
from zaqar_lite.api.render import instant
from zaqar_lite.api.request import NO_CONTENT, Request, Response, Route, warning
from zaqar_lite.api.resources import Resource
from zaqar_lite.api.routes import route
from zaqar_lite.api.v2.messages import if_due
from zaqar_lite.domain.errors import DueChanged, NotFound
from zaqar_lite.domain.limits import MAX_BODY_DEPTH
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.jobs.bulk import DUE_CHANGED, Job, JobAct, Order
from zaqar_lite.service.jobs.jobs import Jobs
from zaqar_lite.service.schedules.schedules import Plan, Schedule, Schedules


@dataclass(eq=False, repr=False)
class JobActions:
    """The actions under `/v2/queues/{queue_name}/redrives` and `.../delayed/{act}`."""

    jobs: Jobs
    authorizer: Authorizer

    @route(
        "POST /v2/queues/{queue_name}/redrives Order -> JobShown",
        "jobs:redrive manage",
        (200, 202, 404, 409, 412),
        largest_body=65_536,
        rel="redrives",
    )
    async def begin_redrive(self, request: Request) -> Response:
        """Begin to redrive; few ids are acted on at once."""
        act = _act(request)
        order = documents.read_struct(request, Order)
        if act is JobAct.REDRIVE:
            self.authorizer.check_target(request.principal, order.to)
        due = if_due(request)  # where it is no move, that is refused as in the document
        if due is not None:
            order.if_due = instant(due)
        job = await self.jobs.begin(request.queue, act, order)
        if job.is_over():
            if due is not None and not job.done and set(job.refused) == {DUE_CHANGED}:
                raise DueChanged(*order.ids or ())
            return Response(200, self._shown(job))
        location = (b"location", f"{request.path}/{job.id}".encode())
        return Response(202, self._shown(job), (location,))

    @route(
        "GET /v2/queues/{queue_name}/redrives -> Jobs",
        "jobs:list_redrives read",
        (200, 404),
        rel="redrives",
    )
    async def list_redrives(self, request: Request) -> Response:
        """List the jobs that redrive."""
        jobs = await self.jobs.list_jobs(request.queue, _act(request))
        return Response(200, {"jobs": [self._shown(job) for job in jobs]})

    @route(
        "GET /v2/queues/{queue_name}/redrives/{job_id} -> JobShown",
        "jobs:show_redrive read",
        (200, 404),
        rel="redrive",
    )
    async def show_redrive(self, request: Request) -> Response:
        """Show a job to redrive."""
        job = await self.jobs.get(request.queue, _act(request), request.path_values[-1])
        return Response(200, self._shown(job))

    @route(
        "DELETE /v2/queues/{queue_name}/redrives/{job_id}",
        "jobs:cancel_redrive manage",
        (204, 404, 409),
        rel="redrive",
    )
    async def cancel_redrive(self, request: Request) -> Response:
        """Cancel a job to redrive."""
        await self.jobs.cancel(request.queue, _act(request), request.path_values[-1])
        return NO_CONTENT

    def _shown(self, job: Job) -> dict[str, Any]:
        order = msgspec.to_builtins(job.order)
        if "ids" in order:
            order["ids"] = len(order["ids"])
        now = self.jobs.clock.now_ms()
        seconds = max((job.ended_at or now) - job.created_at, 1) / 1000
        shown = {
            "id": job.id,
            "act": job.act.value,
            "order": order,
            "state": job.state,
            "created": instant(job.created_at),
            "ended": instant(job.ended_at) if job.ended_at else None,
            "total": job.total,
            "examined": job.examined,
            "selected": job.selected,
            "done": job.done,
            "refused": {reason: count for reason, count in job.refused.items() if count > 0},
            "rate": round(job.done / seconds, 1),
            "remaining": job.seconds_left(now),
        }
        if job.act is JobAct.REDRIVE:
            shown["targets"] = job.targets
        if job.order.dry_run:
            shown["sample"] = job.sample
        if job.error:
            shown["error"] = job.error
        return shown


def delayed_twins(routes: Iterable[Route]) -> Iterator[Route]:
    """The same acts on what is delayed, under names of their own."""
    for one in routes:
        yield replace(
            one,
            template=one.template.replace("redrives", "delayed/{act}"),
            name=one.name.replace("redrive", "delayed_act"),
            summary=one.summary.replace("redrive", "act on delayed messages"),
            rel=one.rel.replace("redrive", "delayed_act"),
            access=one.access._replace(
                rule=(one.access.rule or "").replace("redrive", "delayed_act")
            ),
        )


def _act(request: Request) -> JobAct:
    """What the path asks for."""
    parts = request.path.split("/")
    if parts[4] == "redrives":
        return JobAct.REDRIVE
    if parts[5] in ("cancel", "move", "fire"):
        return JobAct(parts[5])
    raise NotFound(
        f"There is no act {parts[5]!r} on delayed messages: there are cancel, move and fire."
    )


_Parts = dict[str, msgspec.Raw]
_IDLE = "This schedule posts nothing by itself: none of its instants is still to come."


@Resource(
    *("schedule", "/v2/schedules/{schedule_name}", "schedules", "read", "manage"),
    *("KeyLimit", 20),
)
@dataclass(eq=False, repr=False)
class ScheduleActions:
    """The actions of `/v2/schedules`."""

    schedules: Schedules
    authorizer: Authorizer
    most: int = 100

    @route(
        "PUT /v2/schedules/{schedule_name} Schedule -> Schedule",
        "schedules:create manage",
        (200, 201, 409),
        largest_body=65_536,
        rel="schedule",
    )
    async def put_schedule(self, request: Request) -> Response:
        """Make or replace a schedule."""
        plan = documents.read_struct(request, Plan, deepest=MAX_BODY_DEPTH)
        self.authorizer.check_target(request.principal, plan.queue)
        name = request.path_values[0]
        schedule, is_new = await self.schedules.put(request.project, name, plan)
        return self._changed(schedule, 201 if is_new else 200)

    @route(
        "PATCH /v2/schedules/{schedule_name} Schedule -> Schedule",
        "schedules:update manage",
        (200, 404, 409),
        largest_body=65_536,
        rel="schedule",
    )
    async def change_schedule(self, request: Request) -> Response:
        """Change some of a schedule; null takes one away."""
        changes = documents.read_struct(request, _Parts, deepest=MAX_BODY_DEPTH)

        def apply(plan: Plan) -> Plan:
            merged = {**msgspec.json.decode(msgspec.json.encode(plan), type=_Parts), **changes}
            # The body may be null; a null in place of any other field takes that away.
            kept = {
                name: raw for name, raw in merged.items() if name == "body" or bytes(raw) != b"null"
            }
            changed = documents.decode(Plan, msgspec.json.encode(kept))
            self.authorizer.check_target(request.principal, changed.queue)
            return changed

        schedule = await self.schedules.change(request.project, request.path_values[0], apply)
        return self._changed(schedule, 200)

    def _changed(self, schedule: Schedule, status: int) -> Response:
        """Answer a change; of an instant in the past nobody would hear otherwise."""
        shown = self.shown(schedule)
        is_idle = not (shown["next"] or schedule.plan.paused or schedule.fired)
        return Response(status, shown, warning(_IDLE if is_idle else None))

    @route(
        "POST /v2/schedules/{schedule_name}/fire -> Fired",
        "schedules:fire manage",
        (201, 404, 413),
        rel="schedule_fire",
    )
    async def fire_schedule(self, request: Request) -> Response:
        """Post a schedule's message now."""
        may_post = partial(self.authorizer.check_target, request.principal)
        message_id = await self.schedules.fire(request.project, request.path_values[0], may_post)
        return Response(201, {"message_id": message_id})

    async def page(self, request: Request, marker: str | None, limit: int) -> Sequence[Schedule]:
        """Read some schedules of the project."""
        return await self.schedules.kind.page(request.project, marker, limit)

    async def find(self, request: Request) -> Schedule:
        """Read a schedule."""
        return await self.schedules.kind.get(request.project, request.path_values[0])

    async def remove(self, request: Request) -> None:
        """End a schedule."""
        await self.schedules.delete(request.project, request.path_values[0])

    def shown(self, schedule: Schedule, *, detailed: bool = True) -> dict[str, Any]:
        """Write a schedule, and when it fires next."""
        plan = {
            key: orjson.Fragment(bytes(raw))
            for key, raw in msgspec.json.decode(
                msgspec.json.encode(schedule.plan), type=_Parts
            ).items()
        }
        return {
            "name": schedule.name,
            **plan,
            "time_zone": schedule.plan.time_zone,
            "missed": schedule.plan.missed,
            "paused": schedule.plan.paused,
            "next": [instant(at) for at in self.schedules.shown_instants(schedule)],
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
