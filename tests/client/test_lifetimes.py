"""A client in several event loops, threads and processes; and a handler that outlives its claim."""

import asyncio
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client.conftest import MovableServer
from tests.server import ServerProcess
from zaqar_lite.client import AsyncClient, Client, Message, worker

pytestmark = pytest.mark.anyio


def test_an_async_client_works_in_one_event_loop_after_another(
    server: ServerProcess, queue: str
) -> None:
    client = AsyncClient(server.url, project="tests")

    async def post(body: int) -> None:
        await asyncio.gather(*(client.post(queue, body) for _ in range(3)))

    async def post_and_close(body: int) -> None:
        await post(body)
        await client.close()

    async def pop() -> list[object]:
        async with client:
            return [message.body for message in await client.pop(queue, 20)]

    asyncio.run(post(1))
    asyncio.run(post_and_close(2))
    asyncio.run(post(3))
    assert asyncio.run(pop()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    asyncio.run(client.close())  # nothing is open
    gc.collect()  # an open connection would warn, which is an error here


def test_two_event_loops_use_an_async_client_at_once(server: ServerProcess, queue: str) -> None:
    client = AsyncClient(server.url, project="tests")
    both = threading.Barrier(2)

    async def post_many() -> None:
        await client.post(queue, 0)
        both.wait(20)
        for number in range(50):
            await client.post(queue, number)
        both.wait(20)
        await client.close()

    with ThreadPoolExecutor(2) as threads:
        for one in [threads.submit(asyncio.run, post_many()) for _ in range(2)]:
            one.result(60)
    with Client(server.url, project="tests") as other:
        assert other.stats(queue).total == 102


def test_threads_whose_loops_come_and_go_share_an_async_client(server: ServerProcess) -> None:
    """What loops have left open that were closed without their generators is closed once."""
    program = """if True:
        import asyncio, sys
        from concurrent.futures import ThreadPoolExecutor
        from zaqar_lite.client import AsyncClient

        client = AsyncClient(sys.argv[1])
        sys.setswitchinterval(1e-6)
        for _ in range(10):
            loops = [asyncio.new_event_loop() for _ in range(40)]
            for loop in loops:
                loop.run_until_complete(client.ping())
            for loop in loops:
                loop.close()
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda _: asyncio.run(client.ping()), range(8)))
    """
    subprocess.run([sys.executable, "-c", program, server.url], check=True, timeout=60)


def test_eight_threads_share_a_client(client: Client, queue: str) -> None:
    def work(thread: int) -> list[object]:
        for number in range(25):
            client.post(queue, [thread, number])
            assert client.stats(queue).total >= 0
        found: list[object] = []
        while taken := client.pop(queue, 10):
            found += [message.body for message in taken]
        return found

    with ThreadPoolExecutor(8) as threads:
        found = [body for bodies in threads.map(work, range(8)) for body in bodies]
    found += [message.body for message in client.pop(queue, 20)]
    assert sorted(map(str, found)) == sorted(str([t, n]) for t in range(8) for n in range(25))


def test_threads_that_read_their_first_answers_at_once_do_not_end_the_process() -> None:
    """msgspec learns a type when it first meets it, and can't while another thread meets it too."""
    program = """if True:
        import sys, threading
        from zaqar_lite.client.endpoints.messages import read_message
        from zaqar_lite.client.endpoints import jobs, pools, projects, queues, subscriptions

        sys.setswitchinterval(1e-6)
        modules = (jobs, pools, projects, queues, subscriptions)
        readers = [vars(one)[name] for one in modules for name in vars(one) if name.isupper()]
        readers = [one for one in readers if getattr(one, "__name__", "") == "read"]
        start = threading.Barrier(8)

        def work():
            start.wait()
            read_message("queue", {"href": "/v2/queues/queue/messages/1", "ttl": 1, "age": 1,
                                   "body": 1, "attempts": []})
            for read in readers:
                try:
                    read({})
                except ValueError:
                    pass

        threads = [threading.Thread(target=work) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(readers) > 10
    """
    for _ in range(3):
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork here")
def test_a_client_is_used_after_a_fork_by_both_processes(
    server: ServerProcess, client: Client, queue: str
) -> None:
    """They have connections of their own: on a common one they would read each other's answers."""
    program = """if True:
        import os, sys
        from zaqar_lite.client import Client

        url, queue = sys.argv[1:]
        with Client(url, project="tests") as client:
            client.post(queue, "before")
            child = os.fork()
            who = "child" if child == 0 else "parent"
            for number in range(200):
                message_id = client.post(queue, [who, number])
                assert client.get_message(queue, message_id).body == [who, number]
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0) == (child, 0)
    """
    command = [sys.executable, "-c", program, server.url, queue]
    subprocess.run(command, check=True, timeout=60)
    assert client.stats(queue).total == 401


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork here")
def test_threads_of_a_child_leave_its_parents_connections_alone(server: ServerProcess) -> None:
    program = """if True:
        import os, sys
        from concurrent.futures import ThreadPoolExecutor
        from zaqar_lite.client import Client

        sys.setswitchinterval(1e-6)
        client = Client(sys.argv[1])
        for _ in range(60):
            client.ping()
            (pool, _), = client.transport._pools.values()
            child = os.fork()
            if child == 0:
                before = pool.num_requests
                with ThreadPoolExecutor(12) as threads:
                    list(threads.map(lambda _: client.ping(), range(12)))
                os._exit(pool.num_requests - before)
            assert os.waitpid(child, 0) == (child, 0)
    """
    subprocess.run([sys.executable, "-c", program, server.url], check=True, timeout=60)


async def test_a_worker_that_is_cancelled_holds_a_message_until_its_thread_ends(
    server: ServerProcess, client: Client, queue: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @worker(queue)
    def handle(message: Message) -> None:
        begun.set()
        go_on.wait(20)

    client.post(queue, 1)
    async with AsyncClient(server.url, project="tests") as other:
        serving = asyncio.create_task(handle.serve(other))
        await asyncio.to_thread(begun.wait, 20)
        serving.cancel()
        await asyncio.wait([serving], timeout=0.5)
        assert client.stats(queue).claimed == 1
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await serving
    assert client.stats(queue).total == 0  # it was handled


def test_a_worker_counts_a_claim_that_its_handler_has_outlived(
    movable: MovableServer, queue: str
) -> None:
    seen: list[str] = []

    @worker(queue, batch=1, ttl=60, longest_pause=0.01)
    def handle(message: Message) -> None:
        seen.append(message.id)
        if len(seen) == 1:
            movable.advance(61)

    with Client(movable.url) as client:
        client.post(queue, "slow")
        stats = handle.run(client, until_empty=True)
        assert client.stats(queue).total == 0
    assert len(seen) == 2
    assert stats.lost == 1


def test_a_program_ends_beside_a_worker_in_a_daemon_thread() -> None:
    program = """if True:
        import threading
        from zaqar_lite.client import Client, RetryPolicy, worker

        asked = threading.Event()
        retries = RetryPolicy(on_retry=lambda retry: asked.set())
        client = Client("http://127.0.0.1:9", retries=retries)
        threading.Thread(target=worker("q")(print).run, args=[client], daemon=True).start()
        assert asked.wait(20)
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20)
