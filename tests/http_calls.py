"""Count what one post on memory:// costs without sockets: `python tests/http_calls.py`.

It prints JSON: the calls that cProfile counts, those of them that are Python's, the functions of
`zaqar_lite` that run between `data_received` and the store's `post`, how many of these are entered
one inside the other, and the microseconds of a post, whole and with its body behind its head, as
most clients send it. With `--walk` it prints these functions in their order instead, and with
`--sqs` it serves SQS's protocol too. PYTHONPATH chooses the checkout.
"""

import asyncio
import cProfile
import json
import pstats
import sys
import time
from types import FrameType
from typing import Any

import uvloop
from uvicorn.server import ServerState

from zaqar_lite import serve
from zaqar_lite.main import create_app
from zaqar_lite.server import connections
from zaqar_lite.server.loading import load
from zaqar_lite.settings import Settings

_BODY = b'{"messages":[{"body":{"event":"made","id":1},"ttl":300}]}'
_REQUEST = b"\r\n".join(
    (
        b"POST /v2/queues/q/messages HTTP/1.1",
        b"Host: localhost",
        b"Client-ID: 3381af92-2b9e-11e3-b191-71861300734c",
        b"X-Project-ID: p",
        b"Content-Length: %d" % len(_BODY),
        b"",
        _BODY,
    )
)
_IN_TWO = (_REQUEST[: -len(_BODY)], _BODY)
_WARM_UP, _POSTS = 300, 200


class _Transport(asyncio.Transport):
    """A transport that keeps what is written; to ask it costs no call."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = b""

    def write(self, data: Any) -> None:
        self.answer += bytes(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        addresses = {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}
        return addresses.get(name, default)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        raise AssertionError(self.answer)


class _Walk:
    """The functions of `zaqar_lite` that run until the store's `post` is entered."""

    def __init__(self) -> None:
        self.seen: dict[object, str] = {}
        """Their files and names, in the order in which they are entered."""
        self.depth = 0
        self._has_ended = False

    def look(self, frame: FrameType, event: str, _: object) -> None:
        """Note a function that is entered."""
        path = frame.f_code.co_filename
        if event != "call" or self._has_ended or "/zaqar_lite/" not in path:
            return
        if "/storage/" in path and frame.f_code.co_name == "post":
            self._has_ended, at = True, frame.f_back
            while at is not None:
                self.depth += "/zaqar_lite/" in at.f_code.co_filename
                at = at.f_back
        else:
            file = path.rpartition("/zaqar_lite/")[2]
            self.seen[frame.f_code] = f"{file:40} {frame.f_code.co_qualname}"


def _connection(app: Any, settings: Settings, state: ServerState) -> Any:
    """A connection of this checkout, or of one whose connections were uvicorn's."""
    of = getattr(connections, "connections_of", None)
    if of is not None:
        return of(app, settings)(None, state)
    config = getattr(serve, "_config")(settings, app, None)  # noqa: B009 - mypy knows today's
    config.load()
    return config.http_protocol_class(config=config, server_state=state, app_state={})


async def _counted() -> tuple[dict[str, float], _Walk]:
    more = {"sqs": True} if "--sqs" in sys.argv else {}
    settings = load(environment={}, overrides={"store": "memory://", **more})
    app = create_app(settings)
    state = ServerState()
    state.default_headers = [(b"date", b"Fri, 27 Nov 2026 12:00:00 GMT")]
    connection, transport = _connection(app, settings, state), _Transport()
    connection.connection_made(transport)

    async def post(times: int, *pieces: bytes) -> None:
        for _ in range(times):
            transport.answer = b""
            for piece in pieces or (_REQUEST,):
                connection.data_received(piece)
            while b"resources" not in transport.answer:  # noqa: ASYNC110 - an event costs calls
                await asyncio.sleep(0)

    async with _lifespan(app):
        await post(_WARM_UP)
        walk = _Walk()
        sys.setprofile(walk.look)
        await post(1)
        sys.setprofile(None)
        profile = cProfile.Profile()
        profile.enable()
        await post(_POSTS)
        profile.disable()
        spent: dict[str, list[float]] = {"microseconds": [], "microseconds_in_two": []}
        for _ in range(10):
            for name, pieces in zip(spent, ((_REQUEST,), _IN_TWO), strict=True):
                begun = time.process_time()
                await post(_POSTS, *pieces)
                spent[name].append((time.process_time() - begun) / _POSTS)
    stats: Any = pstats.Stats(profile)
    ours = sum(counts[1] for place, counts in stats.stats.items() if place[0] != "~")
    found = {
        "calls": stats.total_calls / _POSTS,
        "python_calls": ours / _POSTS,
        "functions": len(walk.seen),
        "depth": walk.depth,
        **{name: min(found) * 1e6 for name, found in spent.items()},
    }
    return found, walk


class _lifespan:  # noqa: N801 - it is used like a function
    """Open the application's stores, by the lifespan of ASGI."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._opened, self._ends = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._run())
        await self._opened.wait()

    async def __aexit__(self, *_: object) -> None:
        self._ends.set()
        await self._task

    async def _run(self) -> None:
        async def receive() -> dict[str, str]:
            if self._opened.is_set():
                await self._ends.wait()
            return {"type": "lifespan"}

        async def send(_: object) -> None:
            self._opened.set()

        await self._app({"type": "lifespan"}, receive, send)


if __name__ == "__main__":
    counts, way = uvloop.run(_counted())
    print("\n".join(way.seen.values()) if "--walk" in sys.argv else json.dumps(counts))
