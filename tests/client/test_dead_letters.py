"""Dead letters: counted by source, moved back, and no letter lost or doubled by a kill."""

import signal
import subprocess
import sys
import textwrap

import pytest

from tests.server import ServerProcess
from zaqar_lite.client import AsyncClient, Client, Message, RawBody

pytestmark = pytest.mark.anyio


def fail(client: Client, queue: str, dead: str, bodies: list[object]) -> None:
    """Put messages into a queue and claim them until they are dead letters."""
    client.create_queue(queue, {"_dead_letter_queue": dead, "_max_claim_count": 1})
    client.post_all(queue, bodies)
    for _ in range(2 * (len(bodies) // 20 + 1)):
        held = client.create_claim(queue, limit=20)
        if held is not None:
            client.release_claim(queue, held.id)
    while client.create_claim(queue, limit=20) is not None:
        pass
    assert client.stats(queue).total == 0


def test_letters_tell_their_source_and_are_counted_by_it(client: Client, queue: str) -> None:
    dead = f"{queue}-dead"
    client.create_queue(dead)
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


def test_letters_go_back_where_they_came_from(client: Client, queue: str) -> None:
    dead = f"{queue}-dead"
    client.create_queue(dead)
    fail(client, f"{queue}-a", dead, [RawBody(b'{"n": 1.00}'), *range(24)])
    fail(client, f"{queue}-b", dead, ["b"])
    client.post(dead, "by hand")
    result = client.redrive(dead)
    assert result.moved == {f"{queue}-a": 25, f"{queue}-b": 1}
    assert (result.homeless, result.passed_over) == (1, 0)
    assert [m.body for m in client.list_messages(dead)] == ["by hand"]
    back = [m.body for m in client.list_messages(f"{queue}-a", raw=True)]
    assert back[0] == b'{"n": 1.00}'
    assert len(back) == 25
    assert client.redrive(dead, to=f"{queue}-b").moved == {f"{queue}-b": 1}
    assert client.stats(dead).total == 0


def test_a_filter_a_limit_and_a_dry_run(client: Client, queue: str) -> None:
    dead = f"{queue}-dead"
    client.create_queue(dead)
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


def test_large_letters_go_in_several_posts_and_one_that_is_refused_stays(
    client: Client, queue: str
) -> None:
    dead = f"{queue}-dead"
    client.create_queue(dead)
    bodies = [f"{number}".ljust(100_000) for number in range(6)]
    fail(client, queue, dead, [*bodies[:3], "x" * 200_000, *bodies[3:]])
    client.update_queue(queue, {"_max_messages_post_size": 150_000})
    result = client.redrive(dead)
    assert result.moved == {queue: 6}
    ((refused, reason),) = result.refused.items()
    assert "Invalid API request" in reason
    assert [m.id for m in client.list_messages(dead)] == [refused]
    assert sorted(m.body for m in client.list_messages(queue)) == bodies
    assert client.redrive(dead, to=f"{queue}-roomy").moved == {f"{queue}-roomy": 1}


async def test_the_async_client_moves_them_too(
    client: Client, async_client: AsyncClient, queue: str
) -> None:
    dead = f"{queue}-dead"
    client.create_queue(dead)
    fail(client, queue, dead, list(range(30)))
    assert [source.letters for source in await async_client.count_dead_letters(dead)] == [30]
    assert (await async_client.redrive(dead)).moved == {queue: 30}
    assert client.stats(dead).total == 0


KILLED = """
    import os, signal, sys
    from zaqar_lite.client import Client
    class Killer:
        calls = 0
        def __init__(self, transport):
            self.transport = transport
        def send(self, base, request):
            answer = self.transport.send(base, request)
            Killer.calls += request.method != "GET"
            if Killer.calls == int(sys.argv[3]):
                os.kill(os.getpid(), signal.SIGKILL)
            return answer
        def close(self):
            self.transport.close()
    client = Client(sys.argv[1], project="tests")
    client.transport = Killer(client.transport)
    client.redrive(sys.argv[2])
"""


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_killed_after_any_step_and_run_again_each_letter_is_there_once(
    server: ServerProcess, client: Client, queue: str, calls: int
) -> None:
    dead = f"{queue}-dead"
    client.create_queue(dead)
    bodies: list[object] = list(range(50))
    fail(client, queue, dead, bodies)
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), server.url, dead, str(calls)], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    both = [m.body for name in (queue, dead) for m in client.list_messages(name)]
    assert set(both) == set(bodies)
    client.redrive(dead)
    assert sorted(m.body for m in client.list_messages(queue)) == bodies
    assert client.stats(dead).total == 0
