"""What the async client does in its own way; `sync.runtime` has the same names for the sync one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from zaqar_lite.client.auth import Auth
from zaqar_lite.client.calls import Steps, ToTheEnd
from zaqar_lite.client.long_polling import Connection
from zaqar_lite.client.termination import ASYNC_TERMINATION


async def sleep(seconds: float, connection: Connection | None) -> None:
    """Sleep; a connection that is hung up ends it early."""
    if connection is None:
        await asyncio.sleep(seconds)
    else:
        await connection.sleep_async(seconds)


async def login(auth: Auth) -> None:
    """Log in by a library that blocks, in a thread."""
    await asyncio.to_thread(auth.login)


async def wait_for(future: "asyncio.Future[Any]") -> None:
    """Wait for a future, which a cancellation of this wait does not cancel."""
    await asyncio.shield(future)


async def to_the_end(run: Callable[[Steps[Any]], Awaitable[Any]], step: ToTheEnd) -> Any:  # noqa: ANN401
    """Take steps to their end, also when SIGTERM or a cancellation comes meanwhile.

    What a call under way has claimed must be given back; a second cancellation cuts the call.
    """
    task = asyncio.current_task()
    holding = step.on_sigterm and ASYNC_TERMINATION.hold(task)
    cancelled: list[asyncio.CancelledError] = []
    running = asyncio.ensure_future(run(step.make(lambda: bool(cancelled))))
    try:
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                if cancelled:
                    running.cancel()
                cancelled.append(error)
        result = running.result()
        if cancelled:
            raise cancelled[0]
        return result
    finally:
        if holding and task is not None:
            ASYNC_TERMINATION.let_go(task)
