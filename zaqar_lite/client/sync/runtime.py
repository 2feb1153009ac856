"""What the sync client does in its own way; `asynchronous.runtime` has the same names."""

import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from zaqar_lite.client.auth import Auth
from zaqar_lite.client.dead_letters import Steps
from zaqar_lite.client.errors import ServerWarning
from zaqar_lite.client.line import Line
from zaqar_lite.client.termination import TERMINATION
from zaqar_lite.client.wire import Call

T = TypeVar("T")


def sleep(seconds: float, line: Line | None) -> None:
    """Sleep; a line that is hung up ends it early."""
    if line is None:
        time.sleep(seconds)
    else:
        line.sleep(seconds)


def login(auth: Auth) -> None:
    """Log in."""
    auth.login()


def to_the_end(
    call: Callable[[Call[Any]], Any],
    make: Callable[[Callable[[], bool]], Steps[T]],
    *,
    on_sigterm: bool,
) -> T:
    """Carry out the calls that a generator asks for, and tell it how each of them went.

    `make` gets a function that tells whether the work shall end, and returns the generator.
    SIGTERM, if `on_sigterm`, lets it come to its end, because what it has claimed must be given
    back.
    """
    holding = on_sigterm and TERMINATION.hold()
    try:
        with TERMINATION.shield() if holding else contextlib.nullcontext():
            stopping = (lambda: TERMINATION.requested) if holding else (lambda: False)
            return _drive(call, make(stopping))
    finally:
        if holding:
            TERMINATION.let_go()


def _drive(call: Callable[[Call[Any]], Any], steps: Steps[T]) -> T:
    try:
        step = next(steps)
        while True:
            try:
                outcome = call(step)
            except ServerWarning as warning:
                # A warning never ends the work in its middle.
                warnings.warn(warning, stacklevel=4)
                step = steps.send(warning.result)
            except BaseException as error:  # noqa: BLE001 - the generator raises it again
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as done:
        result: T = done.value
        return result
