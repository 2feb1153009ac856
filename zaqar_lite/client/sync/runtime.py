"""What the sync client does in its own way; `asynchronous.runtime` has the same names."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from zaqar_lite.client.auth import Auth
from zaqar_lite.client.calls import Steps, ToTheEnd
from zaqar_lite.client.long_polling import Connection
from zaqar_lite.client.termination import TERMINATION


def sleep(seconds: float, connection: Connection | None) -> None:
    """Sleep; a connection that is hung up ends it early."""
    if connection is None:
        time.sleep(seconds)
    else:
        connection.sleep(seconds)


def login(auth: Auth) -> None:
    """Log in."""
    auth.login()


def wait_for(future: "asyncio.Future[Any]") -> None:
    """Refuse: only methods of the async client wait for futures."""
    raise TypeError(future)


def to_the_end(run: Callable[[Steps[Any]], Any], step: ToTheEnd) -> Any:  # noqa: ANN401
    """Take steps to their end, also when SIGTERM comes meanwhile."""
    holding = step.on_sigterm and TERMINATION.hold()
    try:
        with TERMINATION.shield() if holding else contextlib.nullcontext():
            return run(step.make((lambda: TERMINATION.requested) if holding else (lambda: False)))
    finally:
        if holding:
            TERMINATION.let_go()
