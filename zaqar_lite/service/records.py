"""What every service of records does: repeat a change that lost a race."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from zaqar_lite.domain.errors import QueueChanged, RecordChanged, Unavailable, ZaqarLiteError

P = ParamSpec("P")
T = TypeVar("T")
TRIES = 20


def retried(
    what: str, error: type[ZaqarLiteError] = Unavailable
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Repeat a change from its start when another writer was faster, up to TRIES times.

    The change reads a record and writes it at the version that it has read. `what` names it in
    the error of the last try, where `{1}` is the first argument of the call behind `self`.

    Raises:
        Unavailable: the record changed at every try; another `error` if one is named.
    """

    def decorate(act: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(act)
        async def change(*args: P.args, **named: P.kwargs) -> T:
            for _ in range(TRIES):
                try:
                    return await act(*args, **named)
                except (RecordChanged, QueueChanged):
                    continue
            raise error(f"{what.format(*args, **named)} is being changed too often.")

        return change

    return decorate
