"""Measure the HTTP libraries that the SDK's shells could stand on.

Run it as `python tests/client/http_libraries.py`.

A trivial ASGI application answers every POST with 201 and a short JSON body: it is the ceiling of
any Python server, so a library that keeps up with it never holds the real server back.
Each line is requests per second and the client's own CPU time per request, in milliseconds.
`SECONDS=3` in the environment makes each run longer.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpcore
import httpx
import urllib3

SECONDS = float(os.environ.get("SECONDS", "2"))
IN_FLIGHT = 16
BODY = json.dumps({"messages": [{"body": {"n": n, "text": "x" * 100}} for n in range(10)]}).encode()
HEADERS = {"Client-ID": "3381af92-2b9e-11e3-b191-71861300734c", "X-Project-ID": "measure"}
ANSWER = b'{"resources": ["/v2/queues/q/messages/0123456789abcdef"]}'


async def echo(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Read the request's body and answer 201."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(ANSWER)).encode()),
    ]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run the echo in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(Path(__file__).parent)]
    command += ["--port", str(port), "--no-access-log", "--log-level", "error"]
    process = subprocess.Popen([*command, "--lifespan", "off", "http_libraries:echo"])
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v2/queues/q/messages"
    finally:
        process.terminate()
        process.wait()


async def tasks(send: Callable[[], Awaitable[object]]) -> int:
    """Keep IN_FLIGHT requests under way until the time is up; return how many were answered."""
    end = time.perf_counter() + SECONDS

    async def sender() -> int:
        count = 0
        while time.perf_counter() < end:
            await send()
            count += 1
        return count

    return sum(await asyncio.gather(*(sender() for _ in range(IN_FLIGHT))))


def threads(send: Callable[[], object], number: int) -> int:
    """Do what `tasks` does, with threads."""
    end = time.perf_counter() + SECONDS
    counts: list[int] = []

    def sender() -> None:
        count = 0
        while time.perf_counter() < end:
            send()
            count += 1
        counts.append(count)

    running = [threading.Thread(target=sender) for _ in range(number)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(counts)


async def httpx_async(url: str) -> int:
    """Measure httpx.AsyncClient."""
    limits = httpx.Limits(max_connections=IN_FLIGHT)
    async with httpx.AsyncClient(limits=limits, headers=HEADERS) as client:
        return await tasks(lambda: client.post(url, content=BODY))


async def httpcore_async(url: str) -> int:
    """Measure httpcore, the layer below httpx."""
    headers = [*HEADERS.items(), ("Host", "127.0.0.1"), ("Content-Length", str(len(BODY)))]
    async with httpcore.AsyncConnectionPool(max_connections=IN_FLIGHT) as pool:
        return await tasks(lambda: pool.request("POST", url, headers=headers, content=BODY))


async def aiohttp_async(url: str) -> int:
    """Measure aiohttp."""
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector, headers=HEADERS) as session:

        async def send() -> bytes:
            async with session.post(url, data=BODY) as answer:
                return await answer.read()

        return await tasks(send)


def httpx_sync(url: str, number: int) -> int:
    """Measure httpx.Client."""
    with httpx.Client(headers=HEADERS, limits=httpx.Limits(max_connections=number)) as client:
        return threads(lambda: client.post(url, content=BODY), number)


def urllib3_sync(url: str, number: int) -> int:
    """Measure urllib3's pool."""
    with urllib3.PoolManager(maxsize=number, headers=HEADERS) as pool:
        return threads(lambda: pool.request("POST", url, body=BODY, retries=False), number)


def http_client_sync(url: str, number: int) -> int:
    """Measure http.client, the layer below urllib3, with one connection a thread."""
    address, local = urlsplit(url), threading.local()

    def send() -> bytes:
        if not hasattr(local, "connection"):
            local.connection = HTTPConnection(address.netloc)
        local.connection.request("POST", address.path, body=BODY, headers=HEADERS)
        answer: bytes = local.connection.getresponse().read()
        return answer

    return threads(send, number)


def report(name: str, run: Callable[[], int]) -> None:
    """Print one line."""
    cpu, wall = time.process_time(), time.perf_counter()
    count = run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{name:28} {count / wall:8,.0f} requests/s {1000 * cpu / count:7.2f} ms of CPU each")


def main() -> None:
    """Measure all of them."""
    with server() as url:
        report("httpx async", lambda: asyncio.run(httpx_async(url)))
        report("httpcore async", lambda: asyncio.run(httpcore_async(url)))
        report("aiohttp", lambda: asyncio.run(aiohttp_async(url)))
        report("httpx sync, one thread", lambda: httpx_sync(url, 1))
        report("urllib3, one thread", lambda: urllib3_sync(url, 1))
        report("http.client, one thread", lambda: http_client_sync(url, 1))
        report("httpx sync, 16 threads", lambda: httpx_sync(url, IN_FLIGHT))
        report("urllib3, 16 threads", lambda: urllib3_sync(url, IN_FLIGHT))
        report("http.client, 16 threads", lambda: http_client_sync(url, IN_FLIGHT))


if __name__ == "__main__":
    main()
