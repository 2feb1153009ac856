"""Jobs: put many dead letters back; cancel, move or fire many delayed messages."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from zaqar_lite.api import documents
from zaqar_lite.api.call import NO_CONTENT, Call, Result, Route
from zaqar_lite.api.render import instant
from zaqar_lite.api.routes import route
from zaqar_lite.api.v2.messages import if_due
from zaqar_lite.domain.errors import DueChanged, NotFound
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.jobs.bulk import DUE_CHANGED
from zaqar_lite.service.jobs.job import Job, JobAct, Order
from zaqar_lite.service.jobs.jobs import Jobs

_decoder = msgspec.json.Decoder(Order)


class JobActions:
    """The actions under `/v2/queues/{queue_name}/redrives` and `.../delayed/{act}`."""

    def __init__(self, jobs: Jobs, authority: Authorizer) -> None:
        self._jobs = jobs
        self._authority = authority

    @route(
        "POST /v2/queues/{queue_name}/redrives Job -> JobShown",
        "jobs:redrive manage",
        (200, 202, 404, 409, 412),
        largest_body=65_536,
    )
    async def begin_redrive(self, call: Call) -> Result:
        """Begin to redrive; few ids are acted on at once."""
        act = _act(call)
        order = await documents.sent(call, _decoder)
        if act is JobAct.REDRIVE:
            self._authority.check_target(call.principal, order.to)
        due = if_due(call)  # where it is no move, that is refused as in the document
        if due is not None:
            order.if_due = instant(due)
        job = await self._jobs.begin(call.queue, act, order)
        if job.is_over():
            if due is not None and not job.done and set(job.refused) == {DUE_CHANGED}:
                raise DueChanged(*order.ids or ())
            return Result(200, self._shown(job))
        location = (b"location", f"{call.path}/{job.id}".encode())
        return Result(202, self._shown(job), (location,))

    @route("GET /v2/queues/{queue_name}/redrives -> Jobs", "jobs:list_redrives read", (200, 404))
    async def list_redrives(self, call: Call) -> Result:
        """List the jobs that redrive."""
        jobs = await self._jobs.list_jobs(call.queue, _act(call))
        return Result(200, {"jobs": [self._shown(job) for job in jobs]})

    @route(
        "GET /v2/queues/{queue_name}/redrives/{job_id} -> JobShown",
        "jobs:show_redrive read",
        (200, 404),
    )
    async def show_redrive(self, call: Call) -> Result:
        """Show a job to redrive."""
        job = await self._jobs.get(call.queue, _act(call), call.path_values[-1])
        return Result(200, self._shown(job))

    @route(
        "DELETE /v2/queues/{queue_name}/redrives/{job_id}",
        "jobs:cancel_redrive manage",
        (204, 404, 409),
    )
    async def cancel_redrive(self, call: Call) -> Result:
        """Cancel a job to redrive."""
        await self._jobs.cancel(call.queue, _act(call), call.path_values[-1])
        return NO_CONTENT

    def _shown(self, job: Job) -> dict[str, Any]:
        order = msgspec.to_builtins(job.order)
        if "ids" in order:
            order["ids"] = len(order["ids"])
        now = self._jobs.now_ms()
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
            access=one.access._replace(
                rule=(one.access.rule or "").replace("redrive", "delayed_act")
            ),
        )


def _act(call: Call) -> JobAct:
    """What the path asks for."""
    parts = call.path.split("/")
    if parts[4] == "redrives":
        return JobAct.REDRIVE
    if parts[5] in ("cancel", "move", "fire"):
        return JobAct(parts[5])
    raise NotFound(
        f"There is no act {parts[5]!r} on delayed messages: there are cancel, move and fire."
    )
