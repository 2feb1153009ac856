"""Jobs over HTTP: letters are put back, and delayed messages cancelled, moved and fired."""

import asyncio
import json
import operator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.conftest import Api, MakeApi, nested
from tests.contract.pausing import pause_before
from tests.service.composed import Composed
from tests.services import RedisServer
from tests.waiting import at_work, until
from zaqar_lite.api.request import request_of
from zaqar_lite.api.v2.jobs import JobActions
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.service.jobs.bulk import Choice, Job, JobAct, Order
from zaqar_lite.service.jobs.jobs import RUNNING, JobRunner, Jobs, running_name
from zaqar_lite.storage.sql import create
from zaqar_lite.storage.sql.messages import SqlMessageStore

pytestmark = pytest.mark.anyio
LETTERS = "/v2/queues/letters"
SAMPLES = Path(__file__).parents[2] / "api-ref" / "source" / "samples"


async def let_die(api: Api, *bodies: Any, **fields: Any) -> list[str]:
    """Post messages to the test's queue, and let them fail once, which makes them dead letters."""
    await api.call("PUT", "", {"_dead_letter_queue": "letters", "_max_failures": 1})
    ids = await api.post(*({"body": body, **fields} for body in bodies))
    for message in await api.claim(20):
        act = {"claim": {"failed": True, "reason": "http_503"}}
        await api.expect(204, "PATCH", message["href"], act)
    return ids


async def ended(api: Api, path: str) -> dict[str, Any]:
    """Wait for the end of a job."""
    job: dict[str, Any] = await api.until(
        path, lambda job: job["state"] != "running" and job["ended"]
    )
    return job


async def run(api: Api, path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Begin a job, and wait for its end."""
    answer = await api.expect(202, "POST", path, document)
    return await ended(api, answer.headers["location"])


async def test_a_dry_run_tells_what_is_meant(api: Api) -> None:
    ids = await let_die(api, "x", "y", headers={"kind": "a"})
    choices: list[tuple[dict[str, Any], int]] = [
        ({}, 2),
        ({"source": api.queue}, 2),
        ({"source": "nobody"}, 0),
        ({"reason": "http_503"}, 2),
        ({"reason": "max_failures"}, 2),
        ({"reason": "lapsed"}, 0),
        ({"headers": {"kind": "a"}}, 2),
        ({"headers": {"kind": "b"}}, 0),
        ({"older_than": 60}, 0),
        ({"where": "reason = 'http_503' AND kind = 'a'"}, 2),
        ({"where": f"source = '{api.queue}' AND failure_count = 1 AND redriven < 1"}, 2),
        ({"where": "claim_count > 1"}, 0),
        ({"body": {"path": "", "equals": "x"}}, 0),
    ]
    for choice, count in choices:
        job = await run(api, f"{LETTERS}/redrives", {"filter": choice, "dry_run": True})
        assert (job["state"], job["selected"], job["done"]) == ("completed", count, 0), choice
        assert [one["id"] for one in job["sample"]] == ids[:count]
    assert len(await api.bodies("letters")) == 2


async def test_few_ids_are_put_back_at_once(api: Api) -> None:
    first, second, third, fourth = await let_die(api, *range(1, 5))
    await api.call("POST", f"{LETTERS}/claims?limit=1")

    async def redrive(*ids: str, **more: Any) -> dict[str, Any]:
        document = {"ids": list(ids), **more}
        answer = await api.expect(200, "POST", f"{LETTERS}/redrives", document)
        job: dict[str, Any] = answer.json()
        return job

    assert (await redrive(third, delay=60))["refused"] == {"target_not_delayed": 1}
    job = await redrive(first, third, "0" * 32)
    assert (job["state"], job["done"]) == ("completed", 1)
    assert job["refused"] == {"claimed": 1, "gone": 1}
    assert await api.bodies() == [3]
    job = await redrive(second, fourth, limit=1)
    assert (job["selected"], job["done"]) == (1, 1)
    assert await api.bodies() == [3, 2]
    await api.expect(200, "GET", f"{LETTERS}/messages/{fourth}")


async def test_a_letter_goes_back_three_times_unless_somebody_insists(api: Api) -> None:
    for count in range(4):
        if count:
            for message in await api.claim(1):
                await api.call("PATCH", message["href"], {"claim": {"dead": True}})
        else:
            (letter,) = await let_die(api, "ping-pong")
        answer = await api.call("POST", f"{LETTERS}/redrives", {"ids": [letter]})
        refused = {} if count < 3 else {"max_redrives": 1}
        assert answer.json()["refused"] == refused
    answer = await api.call("POST", f"{LETTERS}/redrives", {"ids": [letter], "force": True})
    assert answer.json()["done"] == 1


async def test_letters_go_where_they_are_told_to_and_wait_there(api: Api) -> None:
    ids = await let_die(api, "a", "b")
    times = {"_default_message_delay": 1, "_default_message_ttl": 90}
    await api.call("PUT", "/v2/queues/repair", times)
    document = {"ids": ids, "to": "repair", "delay": 60, "reset": "none"}
    assert (await api.call("POST", f"{LETTERS}/redrives", document)).json()["done"] == 2
    shown = (await api.call("GET", f"/v2/queues/repair/messages/{ids[0]}")).json()
    assert shown["ttl"] == 120, "as long as the shortest lives once it is due"
    await api.expect(204, "POST", "/v2/queues/repair/claims")
    api.advance(61)
    claimed = (await api.call("POST", "/v2/queues/repair/claims?details=true")).json()["messages"]
    assert [message["id"] for message in claimed] == ids
    assert [message["claim_count"] for message in claimed] == [2, 2]


async def test_one_job_of_a_kind_runs_and_can_be_cancelled(api: Api) -> None:
    await let_die(api, *range(20))
    slow = {"filter": {}, "max_per_second": 1}
    begun = await api.expect(202, "POST", f"{LETTERS}/redrives", slow)
    await api.expect(409, "POST", f"{LETTERS}/redrives", slow)
    path = begun.headers["location"]
    await api.expect(204, "DELETE", path)
    job = await ended(api, path)
    assert job["state"] == "cancelled"
    begun = await api.expect(202, "POST", f"{LETTERS}/redrives", {"filter": {}})
    jobs = (await api.call("GET", f"{LETTERS}/redrives")).json()["jobs"]
    assert [one["id"] for one in jobs][-1] == job["id"]
    assert len(jobs) == 2
    await api.expect(204, "DELETE", path)
    for method in ("GET", "DELETE"):
        await api.expect(404, method, f"{LETTERS}/redrives/nobody")


async def test_slow_jobs_of_a_project_leave_places_for_others(api: Api) -> None:
    delay = {"_default_message_delay": 600}
    many = {"messages": [{"body": n} for n in range(100)]}

    async def begin(queue: str, project: str, **order: int) -> str:
        path = f"/v2/queues/{queue}"
        await api.call("PUT", path, delay, x_project_id=project)
        await api.call("POST", f"{path}/messages", many, x_project_id=project)
        order_of = {"filter": {}, **order}
        begun = await api.call("POST", f"{path}/delayed/fire", order_of, x_project_id=project)
        assert begun.status_code == 202, begun.text
        return begun.headers["location"]

    for number in range(20):
        await begin(f"slow-{number}", "greedy", max_per_second=1)
    path = await begin("quick", "modest")
    is_over = operator.itemgetter("ended")
    job = await api.until(path, is_over, x_project_id="modest")
    assert (job["state"], job["done"]) == ("completed", 100)


@pytest.mark.parametrize("under_way", [0, 1])
async def test_a_job_that_can_never_go_on_fails(under_way: int) -> None:
    """What it looks at makes an error of ours, also where a process that ended had begun a step."""
    clock, queue = Clock(), QueueRef("p", "letters")
    messages, management = create("memory://", clock=clock, options=StoreOptions())
    bulk: Any = None  # nothing is acted on
    jobs = Jobs(messages, management, bulk, limits=Limits(), clock=clock)
    order = Order(filter=Choice())
    await messages.post(queue, [NewMessage(b"[1]", 60_000)], client_id="c", version=None)
    newest = (await messages.stats(queue)).newest
    last = 0 if newest is None else newest.position
    job = Job("j", "letters", JobAct.REDRIVE, order, 0, until=last)
    job.under_way, job.reached = under_way, last * under_way
    name = running_name(queue, JobAct.REDRIVE)
    await management.put_record(RUNNING, "p", name, msgspec.json.encode(job), expected=0)
    async with at_work(JobRunner(jobs, clock, lambda: 0)):
        await until(lambda: jobs.read(queue, JobAct.REDRIVE), lambda running: running[0] is None)
    [found] = await jobs.list_jobs(queue, JobAct.REDRIVE)
    assert (found.state, found.done) == ("failed", 0)
    assert "log" in found.error


async def test_what_was_done_before_a_crash_is_not_told_as_gone() -> None:
    composed = Composed()
    jobs, queue = composed.jobs(), QueueRef("p", "letters")
    new = [NewMessage(b"1", 60_000)]
    (left,) = await composed.store.post(queue, new, client_id="c", version=None)
    order = Order(ids=["0" * 32, "1" * 32, left.id], to="back")
    job = Job("j", "letters", JobAct.REDRIVE, order, 0, until=3)
    job.under_way, job.reached, job.bound = 3, 3, {"back": 3}
    name = running_name(queue, JobAct.REDRIVE)
    await composed.management.put_record(RUNNING, "p", name, msgspec.json.encode(job), expected=0)
    async with at_work(JobRunner(jobs, composed.clock, lambda: 0)):
        await until(lambda: jobs.read(queue, JobAct.REDRIVE), lambda running: running[0] is None)
    request = request_of("GET", b"/v2/queues/letters/redrives", b"", ())
    request.queue = queue
    nobody: Any = None
    listed = (await JobActions(jobs, nobody).list_redrives(request)).document
    [shown] = listed["jobs"]
    assert (shown["done"], shown["targets"], shown["refused"]) == (3, {"back": 3}, {})


async def test_an_order_at_its_bounds_finds_what_it_means(api: Api) -> None:
    path = "a." * 127 + "ab"
    value: Any = nested(197)
    for name in path.split(".")[::-1]:
        value = {name: value}
    await let_die(api, value, "other", group="x" * 128)
    choice = {
        "body": {"path": path, "equals": nested(197)},
        "group": "x" * 128,
        "older_than": 0,
    }
    job = await run(api, f"{LETTERS}/redrives", {"filter": choice})
    assert (job["selected"], job["order"]) == (1, {"filter": choice})


async def delayed(api: Api, *groups: str | None) -> list[str]:
    """Post a delayed message in each of these groups."""
    await api.call("PUT", "", {"_default_message_delay": 600})
    messages = [
        {"body": n} if group is None else {"body": n, "group": group}
        for n, group in enumerate(groups)
    ]
    return await api.post(*messages)


async def test_what_is_delayed_is_fired_in_order(api: Api) -> None:
    ids = await delayed(api, None, None, None)
    answer = await api.call("POST", "delayed/fire", {"ids": ids[::-1]})
    assert answer.json()["done"] == 3
    assert [message["body"] for message in await api.claim()] == [0, 1, 2]
    for act in ("fire", "cancel"):
        answer = await api.call("POST", f"delayed/{act}", {"ids": ids})
        assert answer.json()["refused"] == {"not_delayed": 3}
    await api.expect(404, "POST", "delayed/eat", {"ids": ids})


@pytest.mark.parametrize(("count", "status"), [(100, 200), (101, 202)])
async def test_many_ids_are_acted_on_by_a_job(api: Api, count: int, status: int) -> None:
    ids = await delayed(api, *[None] * (count - 1))
    answer = await api.expect(status, "POST", "delayed/cancel", {"ids": [*ids, "0" * 32]})
    job = answer.json() if status == 200 else await ended(api, answer.headers["location"])
    assert (job["state"], job["total"]) == ("completed", count)
    assert (job["done"], job["refused"]) == (count - 1, {"gone": 1})
    assert await api.bodies() == []


async def test_what_is_delayed_is_moved_by_seconds_or_to_an_instant(api: Api) -> None:
    first, second, third = await delayed(api, None, None, None)
    due = (await api.call("GET", f"messages/{first}?details=true")).json()["delay_expires"]
    order = {"filter": {"due_after": "2001-01-01T00:00:00Z"}, "limit": 2, "by": -500}
    job = await run(api, "delayed/move", order)
    assert (job["examined"], job["selected"], job["done"]) == (2, 2, 2)
    shown = (await api.call("GET", f"messages/{first}?details=true")).json()
    assert shown["delay_expires"] != due
    api.advance(101)
    assert [one["id"] for one in await api.claim()] == [first, second]
    past, far = "2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
    await api.expect(400, "POST", "delayed/move", {"ids": [third], "to": far})
    job = await run(api, "delayed/move", {"filter": {}, "to": past})
    assert (job["state"], job["done"]) == ("completed", 1)
    assert len(await api.claim()) == 1


async def test_a_letter_gets_the_ttl_that_another_server_gave_its_queue(
    make_api: MakeApi, redis_server: RedisServer
) -> None:
    async with make_api(store=redis_server.url) as one, make_api(store=redis_server.url) as two:
        two.queue = one.queue
        (letter,) = await let_die(one, "x")
        await two.set("_default_message_ttl", 77)
        job = await one.expect(200, "POST", f"{LETTERS}/redrives", {"ids": [letter]})
        assert job.json()["done"] == 1
        assert [message["ttl"] for message in await one.browse()] == [77]


async def test_what_somebody_has_moved_is_not_moved_again(api: Api) -> None:
    ids = await delayed(api, None, None)
    path = f"messages/{ids[0]}"
    seen = (await api.call("GET", path)).headers["etag"]
    edited = await api.call("PATCH", path, {"delay": 700}, if_match=seen)
    assert (edited.status_code, edited.headers["etag"] == seen) == (200, False)
    await api.expect(412, "PATCH", path, {"delay": 60}, if_match=seen)
    one = {"ids": ids[:1], "by": -300}
    await api.expect(412, "POST", "delayed/move", one, if_match=seen)
    seen = edited.headers["etag"]
    moved = await api.call("POST", "delayed/move", one, if_match=seen)
    assert (moved.status_code, moved.json()["done"]) == (200, 1)
    due = (await api.call("GET", f"messages/{ids[1]}?details=true")).json()["delay_expires"]
    both = await api.call("POST", "delayed/move", {"ids": ids, "by": 50, "if_due": due})
    assert (both.json()["done"], both.json()["refused"]) == (1, {"due_changed": 1})
    last = '"9999-12-31T23:59:59-05:00"'  # a year later in UTC, of which no date can be written
    await api.expect(412, "POST", "delayed/move", one, if_match=last)
    await api.expect(400, "PATCH", path, {"delay": 60}, if_match='"soon"')
    await api.expect(200, "PATCH", path, {"delay": 0}, if_match="*")
    assert "etag" not in (await api.call("GET", path)).headers
    wrong = {"ids": ids, "if_due": due}
    await api.expect(400, "POST", "delayed/fire", wrong)
    for act in ("delayed/fire", "delayed/cancel", "redrives"):
        refused = await api.call("POST", act, {"ids": ids}, if_match=seen)
        assert (refused.status_code, "if_due" in refused.text) == (400, True)


async def test_a_conditional_move_that_is_done_again_counts_what_it_has_done(api: Api) -> None:
    """As after a crash, of which the queue knows more than the job."""
    ids = await delayed(api, None)
    seen = (await api.call("GET", f"messages/{ids[0]}")).headers["etag"]
    due = datetime.fromisoformat(seen.strip('"')) + timedelta(minutes=3)
    order = {"ids": ids, "to": due.strftime("%Y-%m-%dT%H:%M:%SZ")}
    for _ in range(2):
        moved = await api.call("POST", "delayed/move", order, if_match=seen)
        assert (moved.status_code, moved.json()["done"]) == (200, 1)
    due += timedelta(minutes=1)
    order["to"] = due.strftime("%Y-%m-%dT%H:%M:%SZ")
    await api.expect(412, "POST", "delayed/move", order, if_match=seen)


async def test_what_is_claimed_meanwhile_is_not_cancelled(make_api: MakeApi) -> None:
    with pause_before(SqlMessageStore, "delete") as pause:
        async with make_api() as api:
            ids = await delayed(api, None, None)
            cancelling = asyncio.create_task(api.call("POST", "delayed/cancel", {"ids": ids}))
            await pause.reached()
            api.advance(601)
            assert len(await api.claim(1)) == 1
            pause.go()
            job = (await cancelling).json()
            assert (job["done"], job["refused"]) == (1, {"claimed": 1})
            left = await api.browse("echo=true&include_claimed=true")
            assert [one["id"] for one in left] == ids[:1]


async def test_the_samples_of_the_reference_are_taken_and_answered(api: Api) -> None:
    def sample(name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((SAMPLES / f"{name}.json").read_text())
        return document

    await let_die(api, {"customer": {"id": 7}})
    job = await run(api, f"{LETTERS}/redrives", sample("redrive-request"))
    assert job["state"] == "completed"
    assert set(sample("job-response")) <= {*job, "sample", "error"}
    await delayed(api, "customer-7")
    job = await run(api, "delayed/move", sample("delayed-request"))
    assert job["state"] == "completed"
    path = f"/v2/schedules/{api.queue}"
    await api.expect(201, "PUT", path, sample("schedule-request"))
    shown = (await api.call("GET", path)).json()
    assert set(sample("schedule-response")) == set(shown)
