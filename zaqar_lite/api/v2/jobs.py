"""Jobs: put many dead letters back; cancel, move or fire many delayed messages."""

from typing import Any

import msgspec

from zaqar_lite.api import documents
from zaqar_lite.api.checks import queue_of
from zaqar_lite.api.http import NO_CONTENT, Request, Response
from zaqar_lite.api.render import instant, to_json
from zaqar_lite.domain.errors import NotFound
from zaqar_lite.service.identity.authority import Authority
from zaqar_lite.service.job import Job, JobAct, Order
from zaqar_lite.service.jobs import Jobs

_decoder = msgspec.json.Decoder(Order)


class JobHandlers:
    """The handlers under `/v2/queues/{queue_name}/redrives` and `.../delayed/{act}`."""

    def __init__(self, jobs: Jobs, authority: Authority) -> None:
        self._jobs = jobs
        self._authority = authority

    async def begin(self, request: Request) -> Response:
        """Begin a job; few ids are acted on at once."""
        act = _act(request)
        order = documents.decode(_decoder, await documents.read(request))
        if act is JobAct.REDRIVE:
            self._authority.check_target(request.principal, order.to)
        job = await self._jobs.begin(queue_of(request), act, order)
        if job.is_over():
            return Response(200, to_json(self._shown(job)))
        location = (b"location", f"{request.path}/{job.id}".encode())
        return Response(202, to_json(self._shown(job)), (location,))

    async def list_jobs(self, request: Request) -> Response:
        """List the jobs of a kind."""
        jobs = await self._jobs.list_jobs(queue_of(request), _act(request))
        return Response(200, to_json({"jobs": [self._shown(job) for job in jobs]}))

    async def get(self, request: Request) -> Response:
        """Show a job."""
        job = await self._jobs.get(queue_of(request), _act(request), request.path_values[-1])
        return Response(200, to_json(self._shown(job)))

    async def cancel(self, request: Request) -> Response:
        """Let a job do nothing more."""
        await self._jobs.cancel(queue_of(request), _act(request), request.path_values[-1])
        return NO_CONTENT

    def _shown(self, job: Job) -> dict[str, Any]:
        order = msgspec.to_builtins(job.order)
        if "ids" in order:
            order["ids"] = len(order["ids"])
        until = job.ended_at or self._jobs.now_ms()
        seconds = max(until - job.created_at, 1) / 1000
        left = max(0, job.total - job.examined)
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
            "refused": job.refused,
            "rate": round(job.done / seconds, 1),
            "remaining": None
            if job.is_over() or not job.examined
            else round(left * seconds / job.examined),
        }
        if job.act is JobAct.REDRIVE:
            shown["targets"] = job.targets
        if job.order.dry_run:
            shown["sample"] = job.sample
        if job.error:
            shown["error"] = job.error
        return shown


def _act(request: Request) -> JobAct:
    """What the path asks for."""
    parts = request.path.split("/")
    if parts[4] == "redrives":
        return JobAct.REDRIVE
    if parts[5] in ("cancel", "move", "fire"):
        return JobAct(parts[5])
    raise NotFound("Delayed messages can be cancelled, moved and fired, and nothing else.")
