"""The driver's edge: pymongo's exceptions become the domain's here and nowhere else."""

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from pymongo import errors

from zaqar_lite.domain.errors import ConfigurationError, Invalid, Unavailable, ZaqarLiteError

T = TypeVar("T")
P = ParamSpec("P")
Store = TypeVar("Store")

_REFUSED = frozenset({13, 18, 8000})
"""Unauthorized, AuthenticationFailed, AtlasError."""
_TOO_LARGE = frozenset({10334, 17419})
"""Of a document that is sent, and of one that an update would make."""
TOO_LARGE = "The message is larger than a MongoDB document may be (16 MiB)."


@contextmanager
def translated() -> Iterator[None]:
    """Raise the domain's errors instead of pymongo's; what clients see names no host or user."""
    try:
        yield
    except errors.PyMongoError as exc:
        raise translate(exc) from exc


def translating(store: type[Store]) -> type[Store]:
    """Let a class's public coroutines, its bases' too, raise the domain's errors, not pymongo's.

    What is wrong of the configuration is told at the start; later, where a password was changed for
    one, the store is unavailable.
    """

    def wrapped(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @wraps(method)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                with translated():
                    return await method(*args, **kwargs)
            except ConfigurationError as exc:
                if method.__name__ == "open":
                    raise
                raise Unavailable("MongoDB refuses this server now.", detail=str(exc)) from exc

        return call

    for name in dir(store):
        method = getattr(store, name)
        if not name.startswith("_") and inspect.iscoroutinefunction(method):
            setattr(store, name, wrapped(method))
    return store


def translate(exc: errors.PyMongoError) -> ZaqarLiteError:  # noqa: PLR0911 - a table of cases
    """Find the domain's error for one of pymongo's."""
    code = code_of(exc)
    if isinstance(exc, errors.ConfigurationError | errors.InvalidURI | errors.InvalidName):
        return ConfigurationError(f"The MongoDB URI or an option in it is wrong: {exc}")
    if isinstance(exc, errors.DocumentTooLarge) or code in _TOO_LARGE:
        return Invalid(TOO_LARGE)
    if code in _REFUSED:
        return ConfigurationError(
            "MongoDB refused the credentials, or the user lacks the role readWrite on the "
            "database: check the URI's user, password and authSource."
        )
    if isinstance(exc, errors.WTimeoutError) or code == 64:
        return Unavailable(
            "MongoDB wrote, but too few members confirmed it in time, so a failover may undo it."
        )
    if isinstance(exc, errors.NotPrimaryError):
        return Unavailable("MongoDB is electing a primary.")
    if isinstance(exc, errors.ConnectionFailure):
        why = str(exc).partition(", Timeout: ")[0]  # what follows describes the whole set
        if isinstance(exc, errors.ServerSelectionTimeoutError):
            text = "No MongoDB server that can serve this was found in time."
            return Unavailable(text, detail=why)
        return Unavailable("The connection to MongoDB was lost.", detail=why)
    return Unavailable(f"MongoDB could not serve the request ({type(exc).__name__}, code {code}).")


def is_duplicate(exc: errors.PyMongoError) -> bool:
    """Tell whether a write failed at a unique index."""
    return code_of(exc) == 11000


def code_of(exc: errors.PyMongoError) -> int | None:
    """The server's code of an error; of several errors that of the first."""
    if isinstance(exc, errors.BulkWriteError):
        details = exc.details or {}
        found = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
        return found[0].get("code") if found else exc.code
    return exc.code if isinstance(exc, errors.OperationFailure) else None
