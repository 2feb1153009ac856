"""Following a queue: the SDK's streams, and what it does when one is cut."""

import asyncio
import itertools
import threading

import pytest

from tests.conftest import StartServer
from tests.local_http import LocalHandler, LocalServer
from tests.proxy import OldServer
from tests.server import ServerProcess
from zaqar_lite.client import (
    AsyncClient,
    BadAnswer,
    Client,
    NotFound,
    Resend,
    RetryPolicy,
    Unreachable,
)
from zaqar_lite.client.endpoints.events import Event, EventParser

pytestmark = pytest.mark.anyio


def test_reads_events_however_they_are_cut() -> None:
    stream = b'retry: 10\nid: 1\n\n:\n\nid: 2\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata:x\n\nid: 3\n\n'
    expected = [Event("1", None), Event("2", b'{"a":\n1}'), Event(None, b"x"), Event("3", None)]
    for size in (1, 2, 3, 7, 1000):
        parser = EventParser()
        parts = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [event for part in parts for event in parser.feed(part)] == expected, size


@pytest.mark.parametrize("data", [b"{", b"5", b'{"ttl": []}'])
def test_an_event_that_is_no_message_is_no_answer_of_zaqar(data: bytes) -> None:
    class Handler(LocalHandler):
        def respond(self) -> None:
            stream = {"Content-Type": "text/event-stream"}
            self.answer(200, b"id: 1\ndata: %b\n\n" % data, stream)

    with LocalServer(Handler) as server, Client(server.url) as client:
        with pytest.raises(BadAnswer, match="an event is no message"):
            next(client.events("q"))


def test_follows_a_queue(client: Client, queue: str) -> None:
    client.post_batch(queue, [{"n": n} for n in range(30)])
    following = client.events(queue)
    found = list(itertools.islice(following, 30))
    assert [message.body for message in found] == [{"n": n} for n in range(30)]
    client.post(queue, "next")
    assert next(following).body == "next"
    following.close()
    later = client.events(queue, marker=found[28].id)
    assert [message.body for message in itertools.islice(later, 2)] == [{"n": 29}, "next"]
    later.close()


async def test_follows_a_queue_async(async_client: AsyncClient, queue: str) -> None:
    await async_client.post(queue, "old")
    following = async_client.events(queue, start="now")
    waiting = asyncio.ensure_future(anext(following))
    for number in range(100):
        await async_client.post(queue, number)
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        if done:
            break
    assert waiting.result().body in range(100)
    await following.aclose()


def test_goes_on_where_it_was_when_the_server_comes_back(
    server_process: StartServer, queue: str, tmp_path: object
) -> None:
    server = server_process(f"embedded://{tmp_path}/data")
    with Client(server.url) as client:
        client.post_batch(queue, [1, 2, 3])
        following = client.events(queue)
        assert [message.body for message in itertools.islice(following, 2)] == [1, 2]
        server.kill()
        server.start()
        client.post(queue, 4)
        # The third was under way when the server was killed: it is told, and not twice.
        assert [message.body for message in itertools.islice(following, 2)] == [3, 4]
        following.close()


def test_waits_for_a_server_that_is_away_for_longer_than_a_request_is_tried(
    server_process: StartServer, queue: str, tmp_path: object
) -> None:
    server = server_process(f"embedded://{tmp_path}/data")
    tries: list[Resend] = []

    def come_back(retry: Resend) -> None:
        tries.append(retry)
        if len(tries) == 3:  # each request is tried twice, so this is the second one
            server.start()

    policy = RetryPolicy(attempts=2, base=0.01, on_retry=come_back)
    with Client(server.url, retries=policy) as client:
        client.post(queue, 1)
        following = client.events(queue)
        assert next(following).body == 1
        server.kill()
        producer = threading.Thread(target=post_when_it_is_back, args=(server, queue))
        producer.start()
        assert next(following).body == 2
        following.close()
        producer.join()
    assert len(tries) >= 3
    with Client("http://127.0.0.1:9", retries=RetryPolicy(attempts=1)) as nobody:
        with pytest.raises(Unreachable):
            next(nobody.events(queue))


def post_when_it_is_back(server: ServerProcess, queue: str) -> None:
    patient = RetryPolicy(attempts=1_000, base=0.1, cap=0.1)
    with Client(server.url, retries=patient) as client:
        client.post(queue, 2)


def test_an_old_server_has_no_streams(server: ServerProcess, queue: str) -> None:
    with OldServer(server.url) as old, Client(old.url, project="tests") as client:
        with pytest.raises(NotFound):
            next(client.events(queue))
