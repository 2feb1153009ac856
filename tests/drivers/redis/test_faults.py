"""Redis that is away, loading, read-only, full, busy, forgetful or wrongly configured."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import uvloop

from tests import services
from tests.contract.subject import HOUR, MINUTE, QueueUnderTest, new, texts
from tests.contract.test_outbox_messages import arrived, with_note
from tests.drivers.redis.conftest import Open
from tests.drivers.redis.inspection import raw
from tests.drivers.redis.steps import crash_before, full, standing_still
from tests.drivers.redis.test_parts import MOST_AT_ONCE
from tests.server import PING_HEADERS, ServerProcess
from tests.services import RedisServer
from tests.waiting import until, until_available
from zaqar_lite.domain.errors import ConfigurationError, Unavailable
from zaqar_lite.domain.models import DelayMode
from zaqar_lite.storage.redis.address import Address
from zaqar_lite.storage.redis.faults import ConnectionLost
from zaqar_lite.storage.redis.keys import FAMILIES, keys_of
from zaqar_lite.storage.redis.link import Link, connect
from zaqar_lite.storage.redis.scripts import library_name

pytestmark = pytest.mark.anyio


async def first_refusal(queue: QueueUnderTest) -> str:
    """Post until it is refused; answer why."""
    for _ in range(100):
        try:
            await queue.post("x")
        except Unavailable as exc:
            return str(exc)
        await asyncio.sleep(0.01)
    pytest.fail("nothing is refused")


async def later_refusal(queue: QueueUnderTest) -> str:
    """Post until the lost connection is noticed, then once more; answer why that is refused."""
    await first_refusal(queue)
    await asyncio.sleep(0.2)
    return await first_refusal(queue)


async def test_a_flushed_library_is_loaded_again(queue: QueueUnderTest, client: Any) -> None:
    await queue.post("a")
    client.function_flush()
    await asyncio.gather(*[queue.post("b") for _ in range(5)])
    assert len(await queue.bodies()) == 6


async def test_libraries_of_other_versions_go(
    queue: QueueUnderTest, client: Any, open_queue: Open, own_redis: RedisServer
) -> None:
    code = "redis.register_function('zaqar_lite_0_post', function() return 1 end)"
    client.function_load(f"#!lua name=zaqar_lite_0\n{code}")
    client.function_load(f"#!lua name=other\n{code.replace('zaqar_lite_0', 'other')}")
    await open_queue(own_redis.url)
    names = {library[1] for library in client.function_list()}
    client.function_delete("other")
    assert names == {library_name().encode(), b"other"}
    await queue.post("a")


async def test_a_closed_connection_is_opened_anew(queue: QueueUnderTest, client: Any) -> None:
    await queue.post("a")
    client.client_kill_filter(_type="normal", skipme=True)
    assert await queue.bodies() == ["a"]  # a read is repeated by the driver itself
    client.client_kill_filter(_type="normal", skipme=True)
    await until_available(lambda: queue.post("b"))
    assert await queue.bodies() == ["a", "b"]


async def test_a_killed_server_is_unavailable_and_comes_back(
    queue: QueueUnderTest, own_redis: RedisServer
) -> None:
    await queue.post("a")
    own_redis.kill()
    for _ in range(3):
        with pytest.raises(Unavailable, match="No connection to Redis") as caught:
            await queue.post("lost")
        assert caught.value.retry_after >= 1
    with pytest.raises(Unavailable):
        await queue.stores.messages.ping()
    await asyncio.to_thread(own_redis.start)
    await until_available(lambda: queue.post("b"))
    assert await queue.bodies() == ["a", "b"]


async def test_a_silent_server_is_given_up(
    open_queue: Open, own_redis: RedisServer, client: Any
) -> None:
    queue = await open_queue(f"{own_redis.url}?timeout=0.3")
    await queue.post("a")
    with standing_still(own_redis), pytest.raises(Unavailable, match="no answer"):
        await queue.counts()
    await until_available(lambda: queue.post("b"))
    assert await queue.bodies() == ["a", "b"]


class Deaf(asyncio.Protocol):
    """A server that accepts a connection and never reads from it."""

    def __init__(self) -> None:
        self.transports: list[asyncio.Transport] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self.transports.append(transport)


async def fill(link: Link, size: int) -> list[asyncio.Future[Any]]:
    """Send so many bytes again and again, until they are refused."""
    answers: list[asyncio.Future[Any]] = []
    with contextlib.suppress(ConnectionLost):
        while len(answers) < 30_000:
            answers.append(link.send("ECHO", b"x" * size))
            await asyncio.sleep(0)
    return answers


@pytest.mark.parametrize(("size", "most"), [(1 << 20, range(64, 100)), (1, [20_000])])
async def test_a_server_that_takes_nothing_cannot_fill_the_memory(
    size: int, most: Sequence[int]
) -> None:
    loop, deaf = asyncio.get_running_loop(), Deaf()
    async with await loop.create_server(lambda: deaf, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        _, link = await loop.create_connection(lambda: Link(60), "127.0.0.1", port)
        answers = await fill(link, size)
        assert len(answers) in most
        link.close()
        lost = await asyncio.gather(*answers, return_exceptions=True)
        assert all(isinstance(answer, ConnectionLost) for answer in lost)
        for transport in deaf.transports:
            transport.abort()


@pytest.mark.parametrize(
    ("says", "why"), [(b"", "no answer in time"), (b"HTTP/1.1 400\r\n", "not Redis's protocol")]
)
async def test_a_server_that_does_not_greet_is_left(says: bytes, why: str) -> None:
    """The connection was made: it must not stay open when the login gets no answer."""
    left = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1_024):
                writer.write(says)
        left.set()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        with pytest.raises(ConnectionLost, match=why):
            await connect(address, Address("single", timeout=0.2 if not says else 30), Link)
        await asyncio.wait_for(left.wait(), 10)


class Slow(asyncio.Protocol):
    """A server that answers its first call at once, and the others after 0.4 s."""

    delay = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, _: bytes) -> None:
        asyncio.get_running_loop().call_later(self.delay, self.transport.write, b"+PONG\r\n")
        self.delay = 0.4


async def test_a_call_that_has_waited_for_less_is_no_time_out() -> None:
    """Not from the answer before: a call is not late because nobody had asked for a while."""
    loop = asyncio.get_running_loop()
    async with await loop.create_server(Slow, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        _, link = await loop.create_connection(lambda: Link(1), "127.0.0.1", port)
        await link.send("PING")
        await asyncio.sleep(0.8)
        assert await link.send("PING") == b"PONG"
        link.close()


def test_what_came_while_the_event_loop_was_busy_is_no_time_out() -> None:
    """uvloop looks at its timers before its sockets."""

    async def call(port: int) -> bytes:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Link(0.1), "127.0.0.1", port)
        answer = link.send("PING")
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - the node answers meanwhile
        try:
            return bytes(await answer)
        finally:
            link.close()

    def answer(listener: socket.socket) -> None:
        wire, _ = listener.accept()
        with wire:
            while wire.recv(1_024):
                wire.sendall(b"+PONG\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=answer, args=(listener,))
        answering.start()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                assert runner.run(call(listener.getsockname()[1])) == b"PONG"
        finally:
            answering.join()


async def test_a_caller_that_goes_away_disturbs_nobody(queue: QueueUnderTest) -> None:
    await queue.post("a")
    gone = asyncio.create_task(queue.post("gone"))
    stays = asyncio.create_task(queue.bodies())
    await asyncio.sleep(0)
    gone.cancel()
    assert "a" in await stays
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (await queue.bodies())[0] == "a"


async def test_a_replica_is_left_for_the_master(queue: QueueUnderTest, client: Any) -> None:
    await queue.post("a")
    client.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(Unavailable, match="replica"):
            await queue.post("refused")
    finally:
        client.replicaof("NO", "ONE")
    await until_available(lambda: queue.post("b"))
    assert await queue.bodies() == ["a", "b"]


async def test_a_full_server_still_hands_out_and_deletes(
    queue: QueueUnderTest, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await queue.post("a", "b")
    assert not queue.stores.messages.condition().is_low
    with full(client):
        for _ in range(2):
            with pytest.raises(Unavailable, match="maxmemory"):
                await queue.post("refused")
        assert queue.stores.messages.condition().is_low
        assert sum("maxmemory" in line for line in caplog.messages) == 1
        claimed = await queue.claim(1)
        assert [message.id for message in claimed.messages] == ids[:1]
        await queue.stores.messages.delete(queue.ref, ids, claim_ids=None)
    assert await queue.bodies() == []
    await queue.post("c")


async def test_a_full_server_takes_in_nothing_of_another_store(
    queue: QueueUnderTest, client: Any
) -> None:
    """Messages of a pool that is drained take room, as posts do."""
    other = queue.named(f"{queue.ref.name}-other")
    message = await queue.get_one((await queue.post("a"))[0])
    importing = partial(
        queue.stores.messages.import_messages, other.ref, (message,), source="pool", number=1
    )
    with full(client):
        with pytest.raises(Unavailable, match="maxmemory"):
            await importing()
    assert await other.bodies() == []
    await importing()
    assert await other.bodies() == ["a"]


@pytest.mark.parametrize("kind", FAMILIES["queue"][:-1])
async def test_a_key_that_somebody_deleted_is_no_bug(
    queue: QueueUnderTest, client: Any, kind: str
) -> None:
    """Whatever goes with it: nothing fails, and what expires is counted no more."""
    later = [new(text, ttl=HOUR, delay=MINUTE) for text in "cd"]
    await queue.post(*[new(text, ttl=HOUR) for text in "ab"], *later)
    held = (await queue.claim(1)).messages[0]
    client.delete(keys_of(queue.ref).key(kind))
    await queue.listed()
    await queue.stats()
    await queue.delete(held.id)
    await queue.stats()
    await queue.sweep()
    await queue.claim(mode=DelayMode.HONOUR)
    queue.advance(2 * MINUTE)
    await queue.claim(mode=DelayMode.HONOUR)
    await queue.post("e")
    queue.advance(2 * HOUR)
    assert not (await queue.claim(mode=DelayMode.HONOUR)).messages
    assert (await queue.stats()).total == 0
    assert await queue.listed() == []


async def test_what_a_post_has_brought_arrives_on_a_full_server(
    queue: QueueUnderTest, client: Any
) -> None:
    """It is stored already; and dead letters may be behind it."""
    target = queue.named(f"{queue.ref.name}-notes")
    with crash_before("accept"):
        await queue.post(with_note(new("a"), target), *["b"] * MOST_AT_ONCE)
        await asyncio.sleep(0.05)  # what follows a post is begun before its answer
    with full(client):
        queue.advance(MINUTE)
        await queue.sweep()
        assert len(await arrived(target, 1)) == 1


async def test_a_long_post_that_is_committed_is_stored_on_a_full_server(
    queue: QueueUnderTest, client: Any
) -> None:
    with crash_before("publish"):
        await queue.post(*["a"] * (MOST_AT_ONCE + 1))
    with full(client):
        assert (await queue.counts())[0] == MOST_AT_ONCE + 1


async def test_a_busy_server_is_unavailable(
    queue: QueueUnderTest, client: Any, own_redis: RedisServer
) -> None:
    await queue.post("a")
    client.config_set("busy-reply-threshold", 20)

    def occupy() -> None:
        with raw(own_redis.url) as other, pytest.raises(redis.ResponseError, match="killed"):
            other.eval("while true do end", 0)

    thread = threading.Thread(target=occupy)
    thread.start()
    try:
        assert "busy" in await first_refusal(queue)
    finally:
        client.script_kill()
        thread.join()
    await until_available(lambda: queue.post("b"))
    assert (await queue.bodies())[-1] == "b"


async def test_a_function_that_somebody_killed_has_done_nothing(
    queue: QueueUnderTest, client: Any, own_redis: RedisServer
) -> None:
    """Redis lets them as long as the function only reads."""
    posted, reasons, is_over = await queue.post(*["x"] * 5_000), set[str](), threading.Event()
    client.config_set("busy-reply-threshold", 1)

    def kill() -> None:
        with raw(own_redis.url) as other:
            while not is_over.is_set():
                with contextlib.suppress(redis.ResponseError):
                    other.execute_command("FUNCTION", "KILL")

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        for _ in range(100):
            try:
                await queue.delete(*posted, claims=["0" * 32])
            except Unavailable as exc:
                reasons.add(str(exc))
            if any("FUNCTION KILL" in reason for reason in reasons):
                break
        else:
            pytest.fail(f"nothing was killed: {reasons}")
    finally:
        is_over.set()
        killing.join()
        client.config_set("busy-reply-threshold", 5_000)
    assert await queue.counts() == (5_000, 0, 0)


async def test_a_loading_server_is_unavailable(open_queue: Open) -> None:
    options = ("--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024")
    with services.start_redis(appendfsync="always", options=options) as server:
        queue = await open_queue(server.url)
        await queue.post("a")
        with raw(server.url) as client:
            for number in range(400):
                client.set(f"filler-{number}", "x" * 100)
            client.bgrewriteaof()  # keys are loaded slowly from a base file only
            services.process.wait_until(
                lambda: not client.info("persistence")["aof_rewrite_in_progress"], server.processes
            )
        server.processes[0].kill()
        server.processes[0].start()
        reasons = set()
        for _ in range(200):
            try:
                await queue.bodies()
                break
            except Unavailable as exc:
                reasons.add(str(exc))
                await asyncio.sleep(0.02)
        assert await queue.bodies() == ["a"]
        assert any("loading its data" in reason for reason in reasons), reasons


async def test_a_wrong_password_is_a_matter_of_configuration(open_queue: Open) -> None:
    with services.start_redis(options=("--requirepass", "sesame")) as server:
        for login in ("", ":wrong@", "nobody:wrong@"):
            with pytest.raises(ConfigurationError, match="password"):
                await open_queue(f"redis://{login}127.0.0.1:{server.port}")
        queue = await open_queue(f"redis://:sesame@127.0.0.1:{server.port}/3")
        await queue.post("a")
        assert await queue.bodies() == ["a"]


async def test_a_user_who_may_not_publish_is_a_matter_of_configuration(open_queue: Open) -> None:
    """Redis gives a new user no channels; a script that tells of messages would end half-way."""
    with services.start_redis() as server:
        uri = f"redis://zaqar:sesame@127.0.0.1:{server.port}"
        server.cli("acl", "setuser", "zaqar", "on", ">sesame", "~zl:*", "+@all")
        with pytest.raises(ConfigurationError, match="&zl:"):
            await open_queue(uri)
        server.cli("acl", "setuser", "zaqar", "&zl:*")
        queue = await open_queue(uri)
        await queue.post("a")
        assert texts((await queue.claim()).messages) == ["a"]


async def test_a_server_that_takes_no_more_clients_is_unavailable(open_queue: Open) -> None:
    with services.start_redis() as server, raw(server.url) as client:
        queue = await open_queue(server.url)
        client.config_set("maxclients", 1)
        client.client_kill_filter(_type="normal", skipme=True)
        assert "refuses (ERR max number of clients" in await later_refusal(queue)
        client.config_set("maxclients", 100)
        await until_available(lambda: queue.post("a"))


async def test_a_password_that_was_changed_is_unavailable(open_queue: Open) -> None:
    """The server runs on: only at its start is that a matter of configuration."""
    with services.start_redis(options=("--requirepass", "sesame")) as server:
        queue = await open_queue(f"redis://:sesame@127.0.0.1:{server.port}")
        with raw(f"redis://:sesame@127.0.0.1:{server.port}") as client:
            client.config_set("requirepass", "another")
            client.client_kill_filter(_type="normal", skipme=True)
            assert "WRONGPASS" in await later_refusal(queue)
            with pytest.raises(Unavailable, match="WRONGPASS"):  # readiness asks by this
                await queue.stores.messages.ping()
            client.config_set("requirepass", "sesame")
            await until_available(lambda: queue.post("a"))
            assert client.dbsize(), "a URI that names no database means 0"


async def test_a_server_that_throws_messages_away_is_refused(open_queue: Open) -> None:
    options = ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with services.start_redis(options=options) as server:
        with pytest.raises(ConfigurationError, match="noeviction"):
            await open_queue(server.url)


async def test_a_unix_socket_will_do(open_queue: Open, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with services.start_redis(options=("--unixsocket", str(path))):
        queue = await open_queue(f"unix://{path}")
        await queue.post("a")
        assert await queue.bodies() == ["a"]


async def test_nobody_there_is_unavailable(open_queue: Open) -> None:
    with pytest.raises(Unavailable, match="No connection"):
        await open_queue(f"redis://127.0.0.1:{services.process.free_port()}")


async def test_an_outage_tells_clients_nothing_about_the_inside() -> None:
    """Who runs the server finds in its log where Redis should be; a client does not."""
    with services.start_redis() as gone, ServerProcess(gone.url) as server:
        gone.kill()
        async with httpx.AsyncClient(base_url=server.url, headers=PING_HEADERS) as http:
            answer = await http.get("/v2/queues")
            ready = await http.get("/readyz")
        assert (answer.status_code, ready.status_code) == (503, 503)
        assert "No connection to Redis" in ready.text
        assert str(gone.port) not in ready.text
        assert int(answer.headers["Retry-After"]) >= 1
        assert "No connection to Redis" in answer.json()["description"]
        assert answer.json()["description"].endswith("Please try again in a few seconds.")
        assert str(gone.port) not in answer.text
        await until(lambda: f":{gone.port}" in server.log().partition("sweep: ")[2])
