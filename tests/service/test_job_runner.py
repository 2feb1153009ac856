"""When a process takes over the job of another one that has ended."""

import asyncio
from uuid import uuid4

import pytest

from tests.services import RedisServer
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.service import job_runner
from zaqar_lite.service.bulk import Bulk
from zaqar_lite.service.job import Choice, Job, JobAct, Order
from zaqar_lite.service.job_runner import JobRunner
from zaqar_lite.service.jobs import RUNNING, Jobs, running_name
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.storage.registry import create_stores

pytestmark = pytest.mark.anyio


async def test_a_job_is_taken_over_as_soon_as_it_is_held_no_more(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "_LOOK_EVERY", 600.0)
    clock, limits = Clock(), Limits()
    queue, name = QueueRef(f"p-{uuid4().hex}", "letters"), running_name
    messages, management = create_stores(redis_server.url, clock=clock, options=StoreOptions())
    async with management, messages:
        policies = Policies(management, limits, checked=True)
        queues = Queues(management, messages, policies, limits)
        bulk = Bulk(messages, management, queues, policies, limits=limits, clock=clock)
        jobs = Jobs(messages, management, bulk, limits=limits, clock=clock)
        await messages.post(queue, [NewMessage(b"1", 600_000)], client_id="c", version=None)
        newest = (await messages.stats(queue)).newest
        assert newest is not None
        order, held_until = Order(filter=Choice(), to="back"), clock.now_ms() + 1_500
        job = Job("j", "letters", JobAct.REDRIVE, order, 0, until=newest.position, total=1)
        job.holder, job.held_until = "another", held_until
        await management.put_record(
            RUNNING, queue.project, name(queue, job.act), job.encode(), expected=0
        )
        runner = JobRunner(jobs, clock, lambda: 0)
        runner.start()
        try:
            async with asyncio.timeout(60):
                while not (ended := (await jobs.list_jobs(queue, job.act))[0]).is_over():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            await runner.stop()
        assert (ended.state, ended.done) == ("completed", 1)
        assert ended.ended_at >= held_until
