"""The ASGI lifespan: the stores are opened at its start and closed after the last request."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from zaqar_lite.api.asgi import Receive, Send
from zaqar_lite.domain.errors import ZaqarLiteError

logger = logging.getLogger("zaqar_lite")
Fail = Callable[[BaseException], None]
Lifespan = Callable[[Fail], AbstractAsyncContextManager[None]]
"""Called with what it must tell an error that comes after its start, and ends the server."""


async def serve_lifespan(lifespan: Lifespan, receive: Receive, send: Send) -> None:
    """Run a lifespan by the protocol.

    An error that ends the server is told as a failed start, or, once it listens, as a failed end.
    One that is for users is one line in the log, not a traceback.
    """
    await receive()
    failed: list[BaseException] = []

    def fail(error: BaseException) -> None:
        _log(error)
        failed.append(error)
        signal.raise_signal(signal.SIGTERM)  # the protocol has no other way to ask for an end

    started = False
    try:
        async with lifespan(fail):
            await send({"type": "lifespan.startup.complete"})
            started = True
            # A second Ctrl-C cancels instead of telling; the stores are closed all the same.
            with contextlib.suppress(asyncio.CancelledError):
                await receive()
    except asyncio.CancelledError:  # a signal came before the stores were open: they are closed
        return
    except ZaqarLiteError as exc:
        _log(exc)
        failed.append(exc)
    outcome = "failed" if failed else "complete"
    await send({"type": f"lifespan.{'shutdown' if started else 'startup'}.{outcome}"})


def _log(error: BaseException) -> None:
    if isinstance(error, ZaqarLiteError):
        logger.critical("can't start: %s", error)
    else:
        logger.critical("can't start", exc_info=error)
