"""Streams of events: each message once, as it becomes visible, and on from where one was cut."""

import asyncio
import json
import resource
import socket
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx
import pytest

from tests.api.conftest import CLIENT_ID, PROJECT, Api, MakeApi, signed_by
from tests.api.sockets import SENDER, Raw, request
from tests.conftest import StartServer
from tests.server import ServerProcess
from tests.waiting import until
from zaqar_lite.client import Client
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.service.event_streams import HEARTBEAT, Stream
from zaqar_lite.settings import Settings

pytestmark = pytest.mark.anyio
OTHER = "5a5b1d5e-6b5c-4e53-9d0b-5b7b1f0f2a11"


class Event(NamedTuple):
    """One event as a browser dispatches it."""

    id: str
    body: Any
    message: Mapping[str, Any]


class Listener:
    """A stream that a test reads: what the application sent, by the rules of EventSource."""

    def __init__(self) -> None:
        self.head: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self.last_id = ""
        self.comments = 0
        self.ended = asyncio.Event()
        self._text = b""
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def take(self, message: Any) -> None:
        """Take what the application sends."""
        if message["type"] == "http.response.start":
            self.head.set_result(message)
            return
        self._text += message.get("body", b"")
        while b"\n\n" in self._text:
            block, self._text = self._text.split(b"\n\n", 1)
            self._dispatch(block.decode())
        if not message.get("more_body"):
            self.ended.set()

    def _dispatch(self, block: str) -> None:
        data = []
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "data":
                data.append(value)
            elif line == ":":
                self.comments += 1
        if data:
            message = json.loads("\n".join(data))
            self._events.put_nowait(Event(self.last_id, message["body"], message))

    async def next(self, seconds: float = 10) -> Event:
        """The next event."""
        return await asyncio.wait_for(self._events.get(), seconds)

    async def bodies(self, count: int, seconds: float = 10) -> list[Any]:
        """The bodies of the next events."""
        return [(await self.next(seconds)).body for _ in range(count)]

    def rest(self) -> list[Any]:
        """The bodies of the events that nobody has taken."""
        return [self._events.get_nowait().body for _ in range(self._events.qsize())]


@asynccontextmanager
async def listening(
    api: Api, query: str = "echo=true", last: str | None = None, **headers: str
) -> AsyncIterator[Listener]:
    """Open a stream of the test's queue."""
    listener, gone = Listener(), asyncio.Event()
    sent = {"host": "localhost", "client-id": CLIENT_ID, "x-project-id": PROJECT, **headers}
    sent |= {} if last is None else {"last-event-id": last}
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/v2/queues/{api.queue}/events",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    app: Any = api.http._transport.app  # type: ignore[attr-defined]
    task = asyncio.create_task(app(scope, receive, listener.take))
    try:
        yield listener
    finally:
        gone.set()
        await asyncio.wait_for(task, 10)


class Seen(NamedTuple):
    bodies: list[Any]
    last_id: str


async def seen_now(api: Api, last: str | None = None, query: str = "echo=true") -> Seen:
    """The bodies of all events that are there now, and the id to come back with."""
    async with listening(api, f"{query}&seconds=0", last) as listener:
        await asyncio.wait_for(listener.ended.wait(), 10)
        return Seen(listener.rest(), listener.last_id)


async def told(api: Api, last: str | None = None, query: str = "echo=true") -> list[Any]:
    """The bodies of all events that are there now."""
    return (await seen_now(api, last, query)).bodies


async def test_tells_what_is_there_and_what_comes(api: Api) -> None:
    """Also what somebody holds, and what others posted alone unless the client asks for its own."""
    (first,) = await api.post({"body": {"a": 1}, "ttl": 300})
    await api.claim()
    async with listening(api) as listener:
        head = await listener.head
        assert head["status"] == 200
        headers = dict(head["headers"])
        assert headers[b"content-type"] == b"text/event-stream"
        assert headers[b"cache-control"] == b"no-store"
        assert b"content-length" not in headers
        event = await listener.next()
        assert event.message["id"] == first
        assert set(event.message) == {"id", "href", "ttl", "age", "body"}
        await api.post({"body": 2}, {"body": 3})
        await api.post({"body": "theirs"}, Client_ID=OTHER)
        assert await listener.bodies(3) == [2, 3, "theirs"]
    async with listening(api, "details=true") as listener:
        assert (await listener.next()).message.items() >= {
            "body": "theirs",
            "claim_count": 0,
        }.items()


async def test_an_event_id_is_a_marker_of_a_list_too(api: Api) -> None:
    ids = await api.post(*({"body": n} for n in range(5)))
    async with listening(api) as listener:
        events = [await listener.next() for _ in range(5)]
    for event in events:
        expected = list(range(event.body + 1, 5))
        assert await told(api, event.id) == expected
        listed = await api.browse(f"echo=true&marker={event.id}")
        assert [message["body"] for message in listed] == expected
    assert await told(api, ids[2]) == [3, 4]
    assert await told(api, query=f"echo=true&marker={ids[2]}") == [3, 4]


async def test_begins_now_when_asked_and_goes_on_from_there(api: Api) -> None:
    """Also where it was cut before any event; what is due later is told then."""
    query = "echo=true&start=now"
    await delayed(api)
    assert await told(api, query=query) == []
    (edited,) = await api.post({"body": "edited", "delay": 900})
    api.advance(890)
    await api.expect(200, "PATCH", f"messages/{edited}", {"delay": 900, "ttl": 3_600})
    api.advance(20)  # now it was posted longer ago than the longest delay
    await api.post({"body": "old", "delay": 0}, {"body": "waits", "delay": 10})
    async with listening(api, query) as listener:
        await listener.head
        await api.post({"body": "new", "delay": 0})
        assert (await listener.next()).body == "new"
    async with listening(api, query) as listener:
        await listener.head
    await api.post({"body": "between", "delay": 0})
    assert await told(api, listener.last_id, query) == ["between"]
    api.advance(11)
    assert await told(api, listener.last_id, query) == ["waits", "between"]
    api.advance(880)
    assert await told(api, listener.last_id, query) == ["edited", "waits", "between"]


async def test_refuses_a_last_event_id_that_is_none(api: Api) -> None:
    least, more, large = "0" * 16, "0" * 15 + "1", "8" + "0" * 15
    cursors = (f"{least}-{more}-1", f"{large}-{least}-1", f"{more}-{least}-{large}")
    for wrong in ("x", "0" * 17, "f" * 16 + "-" + least, *cursors):
        await api.expect(400, "GET", "events?seconds=0", Last_Event_ID=wrong)


async def test_a_browser_accepts_only_events_and_errors_are_json(api: Api) -> None:
    accept = {"Accept": "text/event-stream"}
    await api.expect(200, "GET", "events?seconds=0", **accept)
    refused = await api.call("GET", "events?seconds=x", **accept)
    assert refused.json()["title"] == "Invalid parameter"
    await api.expect(406, "GET", "messages", **accept)
    await api.expect(406, "GET", "events", Accept="text/html")


async def test_a_body_with_line_ends_stays_one_event(api: Api) -> None:
    document = b'{"messages": [{"body": {\r\n"a":\r 1,\n\n"b": "x\\ny"}}]}'
    headers = {"Client-ID": CLIENT_ID, "X-Project-ID": PROJECT}
    path = f"/v2/queues/{api.queue}/messages"
    posted = await api.http.post(path, content=document, headers=headers)
    assert posted.status_code == 201, posted.text
    assert await told(api) == [{"a": 1, "b": "x\ny"}]


async def delayed(api: Api) -> None:
    await api.call("PUT", "", {"_default_message_delay": 30})


async def test_a_delayed_message_is_told_when_it_is_due(api: Api) -> None:
    await delayed(api)
    await api.post({"body": "late", "delay": 1}, {"body": "at once", "delay": 0})
    assert await told(api, query="echo=true&include_delayed=true") == ["late", "at once"]
    async with listening(api) as listener:
        assert await listener.bodies(2) == ["at once", "late"]
        await api.post({"body": "later", "delay": 1})
        await api.post({"body": "next", "delay": 0})
        assert await listener.bodies(2) == ["next", "later"]
        assert listener.rest() == []
    assert await told(api, listener.last_id) == []


@pytest.mark.parametrize("seconds", [0, 60])
async def test_what_is_visible_behind_many_delayed_messages_is_told_at_once(
    api: Api, seconds: int
) -> None:
    await delayed(api)
    for first in range(0, 100, 10):
        await api.post(*({"body": n, "delay": 60} for n in range(first, first + 10)))
    await api.post({"body": "now", "delay": 0})
    async with listening(api, f"echo=true&seconds={seconds}") as listener:
        assert (await listener.next(5)).body == "now"


async def test_a_comment_shows_that_an_idle_stream_lives(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 15 seconds without an event, and no sooner."""
    comments = []
    for heartbeat, seconds in ((HEARTBEAT, 1), (0.25, 2)):
        monkeypatch.setattr("zaqar_lite.api.v2.events.HEARTBEAT", heartbeat)
        async with listening(api, f"seconds={seconds}") as listener:
            await asyncio.wait_for(listener.ended.wait(), 20)
        comments.append(listener.comments)
    assert (HEARTBEAT, comments[0], 2 <= comments[1] <= 8) == (15.0, 0, True)


async def test_a_store_that_is_away_is_asked_once_in_a_while(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def fail(*_: object, **__: object) -> None:
        asked.append(1)
        raise Unavailable("The store is away.")

    async with listening(api) as listener:
        await listener.head
        with monkeypatch.context() as patching:
            patching.setattr(Stream, "look", fail)
            await api.post({"body": 1})
            await until(lambda: asked)
            for _ in range(1_000):  # rounds in which others work
                await asyncio.sleep(0)
            assert len(asked) == 1
        assert await listener.bodies(1) == [1]


async def test_who_comes_back_misses_nothing_that_became_visible_meanwhile(api: Api) -> None:
    await delayed(api)
    for n in range(60):
        await api.post({"body": n, "delay": (60 - n) if n % 2 else 0})
    seen = await seen_now(api)
    assert seen.bodies == [n for n in range(60) if not n % 2]
    for step in range(1, 61):
        api.advance(1)
        late = await seen_now(api, seen.last_id)
        seen = Seen(seen.bodies + late.bodies, late.last_id)
        # What is due now was told, once.
        due = {n for n in range(60) if not n % 2 or 60 - n < step}
        assert due <= set(seen.bodies)
    api.advance(2)
    seen = Seen(seen.bodies + await told(api, seen.last_id), "")
    assert sorted(seen.bodies) == list(range(60))


async def test_a_delay_that_is_switched_off_or_cut_short_tells_what_waited(api: Api) -> None:
    await delayed(api)
    first, _ = await api.post({"body": "edited", "delay": 30}, {"body": "waits", "delay": 30})
    async with listening(api) as listener:
        await listener.head
        await api.post({"body": "now", "delay": 0})
        assert (await listener.next()).body == "now"
        await api.expect(200, "PATCH", f"messages/{first}", {"delay": 0})
        assert (await listener.next()).body == "edited"
        await api.set("_default_message_delay", 0)
        await api.post({"body": "after"})
        assert sorted(await listener.bodies(2)) == ["after", "waits"]
        assert listener.rest() == []


async def test_streams_count_among_those_who_wait(make_api: MakeApi) -> None:
    async with make_api(max_waiters_per_project=2) as api:
        async with listening(api) as one, listening(api) as two:
            await one.head
            await two.head
            refused = await api.expect(429, "GET", "events")
            assert refused.headers["Retry-After"] == "1"
        await api.expect(200, "GET", "events?seconds=0")


async def test_a_stream_ends_when_the_server_stops(make_api: MakeApi) -> None:
    async with make_api() as api:
        app: Any = api.http._transport.app  # type: ignore[attr-defined]
        async with listening(api) as listener:
            await listener.head
            app.stop()
            await asyncio.wait_for(listener.ended.wait(), 10)


SIGNED = {"signed_url_secret_key": "a key for the tests, which nobody guesses", "auth": "keys"}


async def signed(api: Api, key: str, *paths: str, **more: str) -> str:
    """The query of a signed address of the test's queue."""
    bearer = {"Authorization": f"Bearer {key}", "Client-ID": CLIENT_ID}
    document = {"paths": list(paths), "methods": ["GET"], **more}
    permit = (await api.expect(200, "POST", "share", document, **bearer)).json()
    return urlencode(
        {**signed_by(permit), "X-Project-ID": permit["project"], "Client-ID": str(uuid.uuid4())}
    )


async def test_an_address_can_carry_its_signature(make_api: MakeApi) -> None:
    async with make_api(**SIGNED) as api:
        key = await api.make_key("*:*")
        await api.post({"body": 1}, Authorization=f"Bearer {key}")
        del api.http.headers["Client-ID"], api.http.headers["X-Project-ID"]
        query = await signed(api, key, "events")

        async def ask(query: str, below: str = "events", **headers: str) -> httpx.Response:
            path = f"/v2/queues/{api.queue}/{below}?seconds=0&{query}"
            return await api.http.get(path, headers={"accept": "text/event-stream", **headers})

        answer = await ask(query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["access-control-allow-origin"] == "*"
        assert '"body":1' in answer.text
        assert (await ask("")).status_code == 401
        for forged, status in (
            (query.replace("Signature=", "Signature=0"), 404),
            (query.replace(PROJECT, "another"), 404),
            (f"{query}&X-Project-ID={PROJECT}", 400),
            (await signed(api, key, "messages"), 404),
        ):
            assert (await ask(forged)).status_code == status
        assert (await ask(query, Authorization=f"Bearer {key}")).status_code == 400
        assert (await ask(query, "messages")).status_code == 401
        named = {"Authorization": f"Bearer {key}", "Client_ID": CLIENT_ID}
        await api.expect(204, "DELETE", "share", **named)
        assert (await ask(query)).status_code == 404


async def test_a_stream_ends_with_its_signature(make_api: MakeApi) -> None:
    async with make_api(**SIGNED) as api:
        key = await api.make_key("*:*")
        now = time.gmtime(time.time() + 3)
        expires = time.strftime("%Y-%m-%dT%H:%M:%S", now)
        query = await signed(api, key, "events", expires=expires)
        async with listening(api, query) as listener:
            await asyncio.wait_for(listener.ended.wait(), 10)


def stream(path: str = "/v2/queues/q/events?echo=true", **headers: str) -> bytes:
    return request("GET", path, headers=headers)


def test_a_stop_ends_all_streams_also_those_that_nobody_reads(server_process: StartServer) -> None:
    server = server_process()
    with Client(server.url, project=PROJECT) as client, Raw(server) as idle, Raw(server) as full:
        for _ in range(64):
            client.post("q", "x" * 200_000)
        full.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        full.send(stream())
        idle.send(stream("/v2/queues/empty/events"))
        assert b"200 OK" in idle._until(b"\r\n\r\n")
        assert full.socket.recv(1, socket.MSG_PEEK)
        started = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - started < Settings.model_fields["shutdown_timeout"].default
        assert idle.rest().endswith(b"0\r\n\r\n")


def test_a_request_behind_a_stream_is_answered(server_process: StartServer) -> None:
    with Raw(server_process("memory://")) as raw:
        last = request("GET", "/v2/queues", headers={"Connection": "close"})
        raw.send(stream("/v2/queues/q/events?seconds=0") + last)
        assert raw.rest().count(b"HTTP/1.1 200 OK\r\n") == 2


def test_a_stream_behind_a_request_ends_with_its_client(server_process: StartServer) -> None:
    server = server_process("memory://")
    with Raw(server) as raw:
        raw.send(request("GET", "/v2/queues") + stream("/v2/queues/q/events"))
        assert b"retry: " in raw._until(b"\nid: ")
        assert waiting(server) == 1
    server.wait_for(lambda: not waiting(server))


async def test_an_idle_stream_costs_ten_kibibytes_at_most(server_process: StartServer) -> None:
    server = server_process()
    statm, page = Path(f"/proc/{server.pid}/statm"), resource.getpagesize()

    def resident() -> int:
        return int(statm.read_text().split()[1]) * page

    with ExitStack() as opened:
        for count in (20, 500):  # the first of them make what all need
            before = resident()
            for _ in range(count):
                raw = opened.enter_context(Raw(server))
                raw.send(stream())
                assert b"retry: " in raw._until(b"\nid: ")
        assert 1_024 < (resident() - before) / count <= 10_240


def waiting(server: ServerProcess) -> int:
    """How many requests of the test's project wait for messages."""
    told = httpx.get(f"{server.url}/v2/quota", headers=SENDER, timeout=60).json()
    return int(told["usage"]["waiters"])


def test_a_reader_that_does_not_read_is_dropped(server_process: StartServer) -> None:
    server = server_process("memory://", env={"ZAQAR_LITE_REQUEST_TIMEOUT": "2"})
    with Client(server.url, project=PROJECT) as client:
        for _ in range(64):
            client.post("q", "x" * 200_000)
    with Raw(server) as full:
        full.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        full.send(stream())
        assert b"200 OK" in full._until(b"\r\n\r\n")
        server.wait_for(lambda: not waiting(server))  # though it would last an hour
