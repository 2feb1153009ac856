"""The ASGI lifespan: open the stores before the first request, close them after the last."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from zaqar_lite.api.http import Receive, Send
from zaqar_lite.domain.errors import ZaqarLiteError

logger = logging.getLogger("zaqar_lite")
Lifespan = Callable[[], AbstractAsyncContextManager[None]]


async def serve_lifespan(lifespan: Lifespan, receive: Receive, send: Send) -> None:
    """Run a lifespan by the protocol.

    A store that can't be opened is one line in the log, not a traceback: its text is for users.
    """
    await receive()
    try:
        async with lifespan():
            await send({"type": "lifespan.startup.complete"})
            # A second Ctrl-C cancels instead of telling; the stores are closed all the same.
            with contextlib.suppress(asyncio.CancelledError):
                await receive()
    except ZaqarLiteError as exc:
        logger.critical("can't start: %s", exc)
        await send({"type": "lifespan.startup.failed", "message": ""})
        return
    except asyncio.CancelledError:  # a signal came before the stores were open: they are closed
        return
    await send({"type": "lifespan.shutdown.complete"})
