"""What the async client does in its own way; `sync.runtime` has the same names for the sync one."""

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from zaqar_lite.client.auth import Auth
from zaqar_lite.client.dead_letters import Steps
from zaqar_lite.client.errors import ServerWarning
from zaqar_lite.client.line import Line
from zaqar_lite.client.termination import ASYNC_TERMINATION
from zaqar_lite.client.wire import Call

T = TypeVar("T")


async def sleep(seconds: float, line: Line | None) -> None:
    """Sleep; a line that is hung up ends it early."""
    if line is None:
        await asyncio.sleep(seconds)
    else:
        await line.sleep_async(seconds)


async def login(auth: Auth) -> None:
    """Log in by a library that blocks, in a thread."""
    await asyncio.to_thread(auth.login)


async def to_the_end(
    call: Callable[[Call[Any]], Awaitable[Any]],
    make: Callable[[Callable[[], bool]], Steps[T]],
    *,
    on_sigterm: bool,
) -> T:
    """Carry out the calls that a generator asks for, and tell it how each of them went.

    `make` gets a function that tells whether the work shall end, and returns the generator.
    SIGTERM, if `on_sigterm`, and a cancellation let it come to its end, because what a call under
    way has claimed must be given back; a second cancellation cuts the call.
    """
    task = asyncio.current_task()
    holding = on_sigterm and ASYNC_TERMINATION.hold(task)
    try:
        cancelled: list[asyncio.CancelledError] = []
        return await _drive(call, make(lambda: bool(cancelled)), cancelled)
    finally:
        if holding and task is not None:
            ASYNC_TERMINATION.let_go(task)


async def _drive(
    call: Callable[[Call[Any]], Awaitable[Any]],
    steps: Steps[T],
    cancelled: list[asyncio.CancelledError],
) -> T:
    try:
        step = next(steps)
        while True:
            running = asyncio.ensure_future(call(step))
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError as error:
                    if cancelled:
                        running.cancel()
                    cancelled.append(error)
            try:
                outcome = running.result()
            except ServerWarning as warning:
                # A warning never ends the work in its middle.
                warnings.warn(warning, stacklevel=4)
                step = steps.send(warning.result)
            except BaseException as error:  # noqa: BLE001 - the generator raises it again
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as done:
        if cancelled:
            raise cancelled[0] from None
        result: T = done.value
        return result
