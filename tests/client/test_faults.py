"""What both clients do when the network and the server misbehave: nothing lost, nothing twice."""

import datetime as dt
import email.utils
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.client.faulty_server import DROP, GARBAGE, LOSE, PAGE, SLOW, Fault, FaultyServer
from tests.local_http import LocalHandler, LocalServer
from tests.services.process import free_port
from zaqar_lite.client import (
    AsyncClient,
    BadAnswer,
    Client,
    Conflict,
    NewMessage,
    Overloaded,
    Resend,
    RetryPolicy,
    ServerFault,
    Unreachable,
    ZaqarError,
    worker,
)
from zaqar_lite.client.calls import Response, from_response

pytestmark = pytest.mark.anyio
QUICK = RetryPolicy(attempts=4, base=0.01)


@pytest.fixture
def faulty() -> Iterator[FaultyServer]:
    """A server that fails as its script says."""
    with FaultyServer() as server:
        yield server


class Sync:
    """The sync client behind the async one's face, so that one test holds both to account."""

    def __init__(self, url: str, **options: Any) -> None:
        self.own = Client(url, **options)

    def __getattr__(self, name: str) -> Any:
        async def call(*given: object) -> object:
            return getattr(self.own, name)(*given)

        return call


Kind = Callable[..., Any]


@pytest.fixture(params=[Sync, AsyncClient])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Makes either client."""
    return partial(request.param, retries=QUICK)


@pytest.fixture
async def client(kind: Kind, faulty: FaultyServer) -> AsyncIterator[Any]:
    """Either client of that server."""
    made = kind(faulty.url, timeout=5)
    yield made
    await made.close()


@pytest.mark.parametrize("script", [[DROP], [LOSE], [503], [429], [LOSE, 503, DROP]], ids=str)
async def test_a_post_survives_and_is_stored_once(
    client: Any, faulty: FaultyServer, script: list[Fault]
) -> None:
    faulty.script.extend(script)
    assert await client.post("q", "precious") == "0"
    assert faulty.stored == ["precious"]
    keys = {headers["Idempotency-Key"] for _, headers in faulty.seen}
    assert len(faulty.seen) == len(script) + 1
    assert len(keys) == 1
    await client.post("q", "another")
    assert faulty.seen[-1][1]["Idempotency-Key"] not in keys
    faulty.script.extend(script)
    await client.post_batch("q", ["no key", NewMessage(body="a key", idempotency_key="k")])
    assert faulty.stored[2:] == ["no key", "a key"]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 500])
async def test_other_errors_are_never_tried_again(
    client: Any, faulty: FaultyServer, status: int
) -> None:
    faulty.script.append(status)
    with pytest.raises(ZaqarError) as caught:
        await client.post("q", 1)
    error = caught.value
    assert (error.status, error.title) == (status, f"Title {status}")
    assert (error.description, error.request_id) == (f"Description {status}.", "req-1")
    assert len(faulty.seen) == 1
    assert isinstance(error, ServerFault if status == 500 else ZaqarError)


async def test_retry_after_is_honoured_and_raised_where_it_is_beyond_patience(
    client: Any, faulty: FaultyServer
) -> None:
    faulty.script.append((503, {"Retry-After": "1"}))
    await client.post("q", 1)
    (first, _), (second, _) = faulty.seen
    assert second - first >= 1
    at = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    faulty.script.append((503, {"Retry-After": email.utils.format_datetime(at, usegmt=True)}))
    with pytest.raises(Overloaded) as caught:
        await client.post("q", 1)
    assert caught.value.retry_after is not None
    assert 3500 < caught.value.retry_after <= 3600
    assert len(faulty.seen) == 3


async def test_retries_end(client: Any, faulty: FaultyServer) -> None:
    faulty.script.extend([503] * 9)
    with pytest.raises(Overloaded, match="Description 503"):
        await client.post("q", 1)
    assert len(faulty.seen) == QUICK.attempts
    faulty.script.clear()
    faulty.script.extend([DROP] * 9)
    with pytest.raises(Unreachable) as caught:
        await client.post("q", 1)
    assert caught.value.status is None


async def test_a_pop_whose_answer_was_lost_is_not_sent_again(
    client: Any, faulty: FaultyServer
) -> None:
    faulty.script.append(LOSE)
    with pytest.raises(Unreachable) as caught:
        await client.pop("q")
    assert caught.value.sent
    assert len(faulty.seen) == 1
    faulty.script.append(503)
    await client.pop("q")
    assert len(faulty.seen) == 3


async def test_an_answer_that_sends_on_names_where(client: Any, faulty: FaultyServer) -> None:
    faulty.script.append((308, {"Location": "https://zaqar.example/v2"}))
    with pytest.raises(BadAnswer, match=r"sends requests on to https://zaqar.example/v2,"):
        await client.post("q", 1)
    assert len(faulty.seen) == 1


async def test_a_conflict_with_what_a_lost_try_may_have_done_is_no_answer(
    client: Any, faulty: FaultyServer
) -> None:
    faulty.script.extend([LOSE, 409])
    with pytest.raises(Unreachable, match="sent again it was refused: Title 409"):
        await client.update_queue("q", {"new": 1})
    faulty.script.append(409)
    with pytest.raises(Conflict):
        await client.update_queue("q", {"new": 1})


async def test_a_slow_answer_counts_as_none(kind: Kind, faulty: FaultyServer) -> None:
    client = kind(faulty.url, timeout=0.3)
    faulty.script.append(SLOW)
    await client.post("q", "late")
    assert faulty.stored == ["late"]
    assert len(faulty.seen) >= 2
    faulty.script.extend([SLOW] * 8)
    with pytest.raises(Unreachable) as late:
        await client.post("q", 1)
    assert late.value.description == "it did not answer within the timeout"
    await client.close()


async def test_a_refused_connection_says_that_nothing_was_sent(kind: Kind) -> None:
    client = kind(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unreachable, match="No connection") as caught:
        await client.pop("q")
    assert not caught.value.sent
    await client.close()


async def test_what_is_not_zaqar_is_told_apart(client: Any, faulty: FaultyServer) -> None:
    for request in (client.post("q", 1), client.get_message("q", "m")):
        faulty.script.append(GARBAGE)
        with pytest.raises(BadAnswer, match="proxy"):
            await request
    error = from_response(Response(502, {}, PAGE))
    assert str(error) == "HTTP 502: Welcome to the hotel's wireless network (502)"
    assert str(from_response(Response(502, {}, b"1 < 2"))) == "HTTP 502: 1 < 2 (502)"


def test_posting_many_over_a_bad_line_stores_each_once(faulty: FaultyServer) -> None:
    faulty.script.extend([DROP, LOSE, 503, "", LOSE, "", 429, DROP, LOSE] * 3)
    with Client(faulty.url, retries=RetryPolicy(attempts=30, base=0.001)) as client:
        summary = client.post_all("q", range(1000), batch_size=20, in_flight=4)
    assert summary.messages == 1000
    assert sorted(map(str, faulty.stored)) == sorted(map(str, range(1000)))


def test_a_rate_is_not_exceeded(faulty: FaultyServer) -> None:
    with Client(faulty.url) as client:
        begin = time.monotonic()
        client.post_all("q", range(60), batch_size=10, rate=100)
    assert time.monotonic() - begin >= 0.5
    assert len(faulty.seen) == 6


def test_full_jitter_spreads_over_the_whole_wait() -> None:
    asked: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return high

    policy = RetryPolicy(attempts=5, base=0.1, cap=0.5, uniform=uniform)
    assert [policy.wait(attempt) for attempt in (1, 2, 3, 4, 5)] == [0.1, 0.2, 0.4, 0.5, None]
    assert asked == [(0, 0.1), (0, 0.2), (0, 0.4), (0, 0.5)]
    assert policy.wait(1, retry_after=2) == pytest.approx(2.1)
    assert RetryPolicy(attempts=10_000, uniform=uniform).wait(5_000) == 10


@pytest.mark.parametrize("path", ["", "/", "/v2", "/messaging", "/messaging/v2"])
def test_the_address_of_a_server_may_have_a_path(path: str) -> None:
    asked: list[str] = []

    class Handler(LocalHandler):
        def get(self) -> None:
            asked.append(self.path)
            self.answer(204)

    with LocalServer(Handler) as server:
        with Client(f"{server.url}{path}", timeout=math.inf) as client:
            client.ping()
        client.ping()  # one that was closed opens its connections again
        client.close()
    assert asked == ["/messaging/v2/ping" if "messaging" in path else "/v2/ping"] * 2


async def test_a_server_without_tls_is_asked_once(faulty: FaultyServer, kind: Kind) -> None:
    """It will not speak TLS at the next try either; nor does a worker try again."""
    tries: list[Resend] = []
    client = kind(faulty.url.replace("http:", "https:"), retries=RetryPolicy(on_retry=tries.append))
    with pytest.raises(Unreachable, match="is its address http://") as refused:
        await client.post("q", 1)
    assert (refused.value.permanent, refused.value.sent) == (True, False)
    with pytest.raises(Unreachable, match="is its address http://"):  # noqa: PT012 - the clients differ
        if isinstance(client, AsyncClient):
            await worker("q")(print).serve(client)
        else:
            worker("q")(print).run(client.own)
    assert tries == []
    await client.close()
