"""Dead letters: counted by source, moved back, and no letter lost or doubled by a kill."""

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests.client.conftest import MovableServer
from tests.client.requests import Around
from tests.proxy import OldServer
from tests.server import ServerProcess
from zaqar_lite.client import AsyncClient, Client, Message, NewMessage, NotFound, RawBody
from zaqar_lite.client.calls import Request, Response

pytestmark = pytest.mark.anyio


@pytest.fixture
def dead(queue: str) -> str:
    """The place for dead letters of a queue."""
    return f"{queue}-dead"


def fail(client: Client, queue: str, dead: str, bodies: list[object]) -> None:
    """Put messages into a queue and claim them until they are dead letters."""
    client.create_queue(dead)
    client.create_queue(queue, {"_dead_letter_queue": dead, "_max_claim_count": 1})
    client.post_all(queue, bodies)
    for _ in range(2 * (len(bodies) // 20 + 1)):
        held = client.create_claim(queue, limit=20)
        if held is not None:
            client.release_claim(queue, held.id)
    while client.create_claim(queue, limit=20) is not None:
        pass
    assert client.stats(queue).total == 0


def test_letters_tell_their_source_and_are_counted_by_it(
    client: Client, queue: str, dead: str
) -> None:
    fail(client, f"{queue}-a", dead, [1, 2, 3])
    fail(client, f"{queue}-b", dead, [4])
    client.post(dead, "by hand")
    assert len(list(client.list_dead_letters(dead))) == 5
    assert [m.body for m in client.list_dead_letters(dead, source=f"{queue}-b")] == [4]
    nobody, first, second = client.count_dead_letters(dead)
    assert (nobody.queue, nobody.letters) == (None, 1)
    assert (first.queue, first.letters, first.claims) == (f"{queue}-a", 3, 3)
    assert (second.queue, second.letters) == (f"{queue}-b", 1)
    assert first.oldest is not None


def test_letters_go_back_where_they_came_from(client: Client, queue: str, dead: str) -> None:
    fail(client, f"{queue}-a", dead, [RawBody(b'{"n": 1.00}'), *range(24)])
    fail(client, f"{queue}-b", dead, ["b"])
    client.post(dead, "by hand")
    result = client.redrive(dead)
    assert result.moved == {f"{queue}-a": 25, f"{queue}-b": 1}
    assert (result.without_source, result.passed_over) == (1, 0)
    assert [m.body for m in client.list_messages(dead)] == ["by hand"]
    back = [m.body for m in client.list_messages(f"{queue}-a", raw=True)]
    assert back[0] == b'{"n": 1.00}'
    assert len(back) == 25
    assert client.redrive(dead, to=f"{queue}-b").moved == {f"{queue}-b": 1}
    assert client.stats(dead).total == 0


def test_a_filter_a_limit_and_a_dry_run(client: Client, queue: str, dead: str) -> None:
    fail(client, queue, dead, [{"n": number} for number in range(30)])

    def odd(letter: Message) -> bool:
        return bool(letter.body["n"] % 2)

    dry = client.redrive(dead, where=odd, dry_run=True)
    assert (dry.moved, dry.passed_over, dry.dry_run) == ({queue: 15}, 15, True)
    assert client.stats(dead).total == 30
    moved: list[str] = []
    result = client.redrive(dead, where=odd, limit=4, on_moved=lambda m, _: moved.append(m.id))
    assert result.moved == {queue: 4}
    assert len(moved) == 4
    assert [m.body["n"] for m in client.list_messages(queue)] == [1, 3, 5, 7]
    assert client.redrive(dead, source="another queue").moved == {}
    with pytest.raises(ValueError, match="itself"):
        client.redrive(dead, to=dead)


def test_the_server_moves_letters_and_they_stay_the_same_messages(
    client: Client, queue: str, dead: str
) -> None:
    fail(client, queue, dead, list(range(5)))
    ids = [letter.id for letter in client.list_dead_letters(dead)]
    dry = client.redrive(dead, where="claim_count = '1'", limit=2, dry_run=True)
    assert (dry.moved, dry.dry_run) == ({queue: 2}, True)
    wanted = {"body": {"path": "n", "equals": 1}, "reason": "max_claims"}
    assert client.redrive(dead, where=wanted, dry_run=True).passed_over == 5
    assert client.redrive(dead, where={"source": "another queue"}).moved == {}
    with pytest.raises(ValueError, match="given twice"):
        client.redrive(dead, source=queue, where={"source": "another queue"})
    with pytest.raises(ValueError, match="goes with a function"):
        client.redrive(dead, where=wanted, on_moved=lambda *_: None)
    result = client.redrive(dead, where="claim_count = '1'")
    assert (result.moved, result.passed_over, result.stayed) == ({queue: 5}, 0, {})
    back = list(client.list_messages(queue, details=True))
    assert [message.id for message in back] == ids
    client.redrive(queue, to=dead)
    client.update_queue(dead, {"_max_redrives": 1})
    result = client.redrive(dead)
    assert (result.moved, result.stayed) == ({}, {"max_redrives": 5})


def test_a_server_without_jobs_needs_the_client_to_post_them(
    server: ServerProcess, client: Client, queue: str, dead: str
) -> None:
    letters = [NewMessage(body=n, headers={"a": "b"}, group="g") for n in range(50)]
    fail(client, queue, dead, [*letters, "x" * 2000])
    client.update_queue(queue, {"_max_messages_post_size": 1024})

    def even(letter: Message) -> bool:
        return isinstance(letter.body, str) or letter.body % 2 == 0

    with OldServer(server.url) as older, Client(older.url, project="tests") as outdated:
        with pytest.raises(NotFound):
            outdated.redrive(dead, where={"where": "claim_count = '1'"})
        assert outdated.redrive(dead, limit=26, dry_run=True).moved == {queue: 26}
        assert {one.claim_count for one in client.list_dead_letters(dead)} == {1}
        with client.claim(dead, limit=1) as claim:
            assert outdated.redrive(dead, where=even, dry_run=True).moved == {queue: 26}
            result = outdated.redrive(dead, where=even)
            assert (result.moved, result.passed_over, result.held) == ({queue: 24}, 25, 1)
            ((refused, reason),) = result.refused.items()
            assert "Invalid API request" in reason
            claim.skip(*claim.messages)
        assert client.stats(dead).ready == 27
        assert outdated.redrive(dead, limit=26).moved == {queue: 26}
    assert [m.id for m in client.list_messages(dead)] == [refused]
    back = list(client.list_messages(queue, details=True))
    assert sorted(message.body for message in back) == list(range(50))
    assert {(message.group, str(message.headers)) for message in back} == {("g", "{'a': 'b'}")}


def test_a_job_that_is_gone_is_no_sign_of_a_server_without_jobs(
    client: Client, queue: str, dead: str
) -> None:
    fail(client, queue, dead, [1])
    (before,) = client.list_dead_letters(dead)
    client.transport = WithoutJobs(client.transport)
    with pytest.raises(NotFound):
        client.redrive(dead)
    assert {one.id for name in (queue, dead) for one in client.list_messages(name)} == {before.id}


def test_a_claim_that_lapses_between_post_and_delete_doubles_nothing(
    movable: MovableServer, queue: str, dead: str
) -> None:
    with (
        Client(movable.url) as client,
        OldServer(movable.url) as older,
        Client(older.url) as outdated,
    ):
        fail(client, queue, dead, list(range(5)))
        steady = outdated.transport
        outdated.transport = Forgetful(steady, movable)
        result = outdated.redrive(dead)
        assert (result.moved, result.lost) == ({}, 5)
        outdated.transport = steady
        assert outdated.redrive(dead).moved == {queue: 5}
        assert bodies_in(client, queue) == list(range(5))


class WithoutJobs(Around):
    """A transport to a server that knows no job any more when it is asked for one."""

    def send(self, base: str, request: Request) -> Any:
        if request.method == "GET" and "/redrives/" in request.path:
            return Response(404, {}, b"{}")
        return super().send(base, request)


class Forgetful(Around):
    """A transport under which the claim lapses right after the first post."""

    def __init__(self, transport: Any, movable: MovableServer) -> None:
        super().__init__(transport)
        self._movable = movable
        self._lapsed = False

    def send(self, base: str, request: Request) -> Any:
        answer = super().send(base, request)
        if not self._lapsed and request.method == "POST" and request.path.endswith("/messages"):
            self._lapsed = True
            self._movable.advance(301)
        return answer


# Runs `client.redrive` in a process of its own, and sends it a signal after so many calls.
REDRIVE = """
    import dataclasses, json, os, sys
    from zaqar_lite.client import Client
    url, project, queue, calls, signal = sys.argv[1:]
    class Watched:
        made = 0
        def __init__(self, transport):
            self.transport = transport
        def send(self, base, request):
            answer = self.transport.send(base, request)
            self.made += request.method != "GET"
            if self.made == int(calls):
                os.kill(os.getpid(), int(signal))
            return answer
        def close(self):
            self.transport.close()
    client = Client(url, project=project)
    client.transport = Watched(client.transport)
    print(json.dumps(dataclasses.asdict(client.redrive(queue, where=lambda _: True))))
"""
NEVER = 1_000_000


def start_redrive(
    url: str, project: str, queue: str, *, calls: int = NEVER, signum: int = 0
) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", textwrap.dedent(REDRIVE), url, project, queue]
    return subprocess.Popen([*words, str(calls), str(signum)], stdout=subprocess.PIPE, text=True)


def bodies_in(client: Client, queue: str) -> list[int]:
    return sorted(m.body for m in client.list_messages(queue, include_claimed=True))


@pytest.mark.parametrize("calls", [1, 2])  # a page of letters each
def test_killed_after_any_call_and_run_again_each_letter_is_there_once(
    movable: MovableServer, queue: str, dead: str, calls: int
) -> None:
    bodies: list[object] = list(range(50))
    with Client(movable.url) as client:
        fail(client, queue, dead, bodies)
        with start_redrive(
            movable.url, "default", dead, calls=calls, signum=signal.SIGKILL.value
        ) as killed:
            assert killed.wait(30) == -signal.SIGKILL
        assert set(bodies_in(client, queue) + bodies_in(client, dead)) == set(bodies)
        assert client.redrive(dead, where=lambda _: True).held == 0
        assert bodies_in(client, queue) == bodies
        assert client.stats(dead).total == 0


def test_two_redrives_at_once_move_each_letter_once(
    server: ServerProcess, client: Client, queue: str, dead: str
) -> None:
    bodies: list[object] = list(range(400))
    fail(client, queue, dead, bodies)
    running = [start_redrive(server.url, "tests", dead) for _ in range(2)]
    results = [json.loads(one.communicate(timeout=60)[0]) for one in running]
    assert [one.returncode for one in running] == [0, 0]
    # Counted, not only stored, once.
    assert sum(result["moved"].get(queue, 0) for result in results) == 400
    assert bodies_in(client, queue) == bodies
    assert client.stats(dead).total == 0


def test_letters_that_somebody_holds_stay_and_are_told(
    client: Client, queue: str, dead: str
) -> None:
    fail(client, queue, dead, list(range(6)))
    with client.claim(dead, limit=2) as claim:
        result = client.redrive(dead)
        assert (result.moved, result.held) == ({queue: 4}, 2)
        claim.skip(*claim.messages)
    assert client.redrive(dead).moved == {queue: 2}


def test_a_letter_that_fails_again_meanwhile_waits_for_the_next_run(
    client: Client, queue: str, dead: str
) -> None:
    fail(client, queue, dead, list(range(5)))

    def fail_again(letter: Message, target: str) -> None:
        client.post(dead, f"{letter.body} from {target}")

    result = client.redrive(dead, on_moved=fail_again)
    assert result.moved == {queue: 5}
    assert client.stats(dead).ready == 5


def test_others_may_take_letters_while_a_function_chooses(
    client: Client, queue: str, dead: str
) -> None:
    fail(client, queue, dead, list(range(50)))
    newest = client.stats(dead).newest
    assert newest is not None
    seen: list[object] = []

    def choose(letter: Message) -> bool:
        if not seen:
            client.delete_message(dead, newest.message_id)
        seen.append(letter.body)
        return True

    assert client.redrive(dead, where=choose).moved == {queue: 49}
    assert seen == list(range(49))


async def test_a_cancelled_async_redrive_leaves_each_letter_in_one_queue(
    client: Client, async_client: AsyncClient, queue: str, dead: str
) -> None:
    fail(client, queue, dead, list(range(60)))
    task = asyncio.current_task()
    assert task is not None
    moved: list[object] = []

    def cancel(letter: Message, _target: str) -> None:
        moved.append(letter.body)
        if len(moved) == 20:
            task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await async_client.redrive(dead, on_moved=cancel)
    task.uncancel()
    stats = client.stats(dead)
    assert (stats.claimed, client.stats(queue).total + stats.claimable) == (0, 60)
    assert stats.claimable in {39, 40}
