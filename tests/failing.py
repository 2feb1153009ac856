"""What fails in the place of a method."""

from collections.abc import Callable
from typing import Any


def failing(error: Exception) -> Callable[..., Any]:
    """A coroutine function that raises an error, whatever it is given."""

    async def fail(*_: object, **__: object) -> None:
        raise error

    return fail
