"""Move tasks: the product's jobs that redrive dead letters, as SQS's clients know them."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from zaqar_lite.api.request import Response
from zaqar_lite.domain.errors import Conflict, NotFound
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.jobs.bulk import Choice, Job, JobAct, Order
from zaqar_lite.service.jobs.jobs import Jobs
from zaqar_lite.sqs.errors import SqsError, invalid, unsupported
from zaqar_lite.sqs.protocol import Call, check_range, done, operation
from zaqar_lite.sqs.queues import QueueOperations

MAX_PER_SECOND = 500


class _StartMessageMoveTask(Struct, rename="pascal"):
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class _ListMessageMoveTasks(Struct, rename="pascal"):
    source_arn: str
    max_results: int = 1


class _CancelMessageMoveTask(Struct, rename="pascal"):
    task_handle: str

    @property
    def source_arn(self) -> str:
        """The queue of the task."""
        return self.task_handle.partition("/")[0]


@dataclass(eq=False, repr=False)
class MoveTasks:
    """The operations on move tasks, each named by the handle of its queue and its job."""

    jobs: Jobs
    queues: QueueOperations
    authorizer: Authorizer

    @operation("jobs:redrive manage")
    async def start_message_move_task(self, call: Call[_StartMessageMoveTask]) -> Response:
        """Put dead letters back where they came from, or into another queue."""
        form, source, to = call.form, call.queue, None
        await self.queues.attributes(source)
        if not await self.queues.queues.dead_letter_sources(source, limit=1):
            raise invalid("Source queue must be configured as a Dead Letter Queue.")
        if form.destination_arn is not None:
            target = call.named(form.destination_arn)
            await self.queues.attributes(target)
            to = target.name
            self.authorizer.check_target(call.request.principal, to)
        rate = form.max_number_of_messages_per_second
        if rate is not None:
            check_range("MaxNumberOfMessagesPerSecond", rate, MAX_PER_SECOND, least=1)
        order = Order(filter=Choice(), max_per_second=rate, to=to, force=True)
        try:
            job = await self.jobs.begin(source, JobAct.REDRIVE, order)
        except Conflict:
            raise unsupported("There is already a task running for this source queue.") from None
        return done({"TaskHandle": _handle(call, job)})

    @operation("jobs:list_redrives read")
    async def list_message_move_tasks(self, call: Call[_ListMessageMoveTasks]) -> Response:
        """List the tasks of a queue, the newest first."""
        most = call.form.max_results
        check_range("MaxResults", most, 10, least=1)
        await self.queues.attributes(call.queue)
        found = await self.jobs.list_jobs(call.queue, JobAct.REDRIVE)
        return done({"Results": [_shown(call, job) for job in found[:most]]})

    @operation("jobs:cancel_redrive manage")
    async def cancel_message_move_task(self, call: Call[_CancelMessageMoveTask]) -> Response:
        """Cancel a task; what it has moved stays moved."""
        job_id, job = call.form.task_handle.partition("/")[2], None
        with suppress(NotFound):
            job = await self.jobs.get(call.queue, JobAct.REDRIVE, job_id)
        if job is None or job.is_over():
            raise SqsError("ResourceNotFoundException", "There is no such task running.")
        await self.jobs.cancel(call.queue, JobAct.REDRIVE, job.id)
        return done({"ApproximateNumberOfMessagesMoved": job.done})


def _handle(call: Call[Any], job: Job) -> str:
    return f"{call.arn(call.queue.name)}/{job.id}"


def _shown(call: Call[Any], job: Job) -> dict[str, Any]:
    order = job.order
    shown = {
        "Status": job.state.upper(),
        "SourceArn": call.arn(job.queue),
        "DestinationArn": None if order.to is None else call.arn(order.to),
        "MaxNumberOfMessagesPerSecond": order.max_per_second,
        "ApproximateNumberOfMessagesMoved": job.done,
        "ApproximateNumberOfMessagesToMove": job.total,
        "StartedTimestamp": job.created_at,
        "FailureReason": job.error or None,
        "TaskHandle": None if job.is_over() else _handle(call, job),
    }
    return {name: value for name, value in shown.items() if value is not None}
