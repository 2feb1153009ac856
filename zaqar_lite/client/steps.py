"""Methods of both clients, each written once: as the steps that it takes.

The steps of a method are a generator, which does no I/O: each step is answered by its outcome, and
what the generator returns is the method's result. `Client` takes the steps in the caller's thread,
and `AsyncClient` on an event loop: there the same method is a coroutine.
"""

import asyncio
import dataclasses
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, get_args, overload

from zaqar_lite.client.auth import Auth
from zaqar_lite.client.long_polling import Connection

P = ParamSpec("P")
T = TypeVar("T")


class Step:
    """Something to do in the way of each client; the outcome is what it returns."""

    __slots__ = ()

    def take(self, client: "Sync") -> Any:  # noqa: ANN401 - each step's own
        """Do it in the caller's thread."""
        raise NotImplementedError

    async def take_async(self, client: "Async") -> Any:  # noqa: ANN401
        """Do it on an event loop."""
        raise NotImplementedError


Steps = Generator[Step, Any, T]
"""What to do for a result of type T; each step is answered by its outcome."""


@dataclasses.dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing; `marker` leads to the next, None after the last."""

    items: Sequence[T]
    marker: str | None


Pages = Callable[[str | None], Steps[Page[T]]]
"""The steps to a page of a list, by its marker; None is the first page's."""


class Runner:
    """What takes steps, and what `AsyncRunner` and `SyncRunner` define."""

    _auth: Auth

    def _send(self, request: Any) -> Any:  # noqa: ANN401 - a Request, and a Response
        """Send a request; return the answer, or raise `Unreachable`."""
        raise NotImplementedError

    def _run(self, steps: Steps[T]) -> Any:  # noqa: ANN401 - a T, or what is awaited for it
        """Take the steps of a method; return its result."""
        raise NotImplementedError


class Async(Runner):
    """What takes steps on an event loop: what it returns is awaited."""

    def __init_subclass__(cls) -> None:
        _declare(cls)


class Sync(Runner):
    """What takes steps in the caller's thread."""

    def __init_subclass__(cls) -> None:
        _declare(cls)


class Stream(Generic[T]):
    """Pages that must be closed when nobody reads them any more."""

    def __call__(self, marker: str | None) -> Steps[Page[T]]:
        """Return the steps to the next page."""
        raise NotImplementedError

    def close(self) -> Steps[None]:
        """Return the steps that close it."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, slots=True)
class Sleep(Step):
    """Wait this many seconds, or until the connection is hung up."""

    seconds: float
    connection: Connection | None = None

    def take(self, client: Sync) -> None:
        """Sleep in the caller's thread."""
        (self.connection or Connection()).sleep(self.seconds)

    async def take_async(self, client: Async) -> None:
        """Sleep on the event loop."""
        await (self.connection or Connection()).sleep_async(self.seconds)


class Login(Step):
    """Have the auth plug-in fetch a token; it may block."""

    def take(self, client: Sync) -> None:
        """Log in."""
        client._auth.login()

    async def take_async(self, client: Async) -> None:
        """Log in, in a thread."""
        await asyncio.to_thread(client._auth.login)


LOGIN: Final = Login()


class Do(Step):
    """Call a function; an async client awaits what it returns."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.function = function
        self.arguments = arguments

    def take(self, client: Sync) -> Any:  # noqa: ANN401 - the function's
        """Call it."""
        return self.function(*self.arguments)

    async def take_async(self, client: Async) -> Any:  # noqa: ANN401
        """Call and await it."""
        return await self.function(*self.arguments)


@dataclasses.dataclass(frozen=True, slots=True)
class Background(Step):
    """Take other steps beside these; the outcome is the function, for `Do`, that ends them.

    A thread ends by itself, when the steps find that the connection was hung up.
    """

    steps: Steps[None]
    name: str

    def take(self, client: Sync) -> Callable[[], None]:
        """Take them in a thread."""
        thread = threading.Thread(
            target=client._run, args=[self.steps], name=self.name, daemon=True
        )
        thread.start()
        return thread.join

    async def take_async(self, client: Async) -> Callable[[], Coroutine[Any, Any, None]]:
        """Take them in a task."""
        task = asyncio.create_task(client._run(self.steps), name=self.name)

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        return end


class method(Generic[P, T]):  # noqa: N801 - a decorator
    """A method that makes one result; the function returns its steps."""

    def __init__(self, function: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self.function: Callable[..., Any] = function

    @overload
    def __get__(self, of: Async, kind: object = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, of: Sync, kind: object = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, of: None, kind: object = None) -> Callable[..., Any]: ...
    def __get__(self, of: object, kind: object = None) -> Any:
        """Tell a type checker what the method is; a class of a client has functions instead."""
        return self


class listing(Generic[P, T]):  # noqa: N801 - a decorator
    """A method that yields the entries of a list; the function returns the steps to its pages."""

    def __init__(self, function: Callable[Concatenate[Any, P], Pages[T]]) -> None:
        self.function: Callable[..., Any] = function

    @overload
    def __get__(self, of: Async, kind: object = None) -> Callable[P, AsyncGenerator[T, None]]: ...
    @overload
    def __get__(self, of: Sync, kind: object = None) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, of: None, kind: object = None) -> Callable[..., Any]: ...
    def __get__(self, of: object, kind: object = None) -> Any:
        """Tell a type checker what the method is; a class of a client has functions instead."""
        return self


def _declare(cls: type) -> None:
    """Give a class functions for the methods that its bases declare."""
    for name in dir(cls):
        declared = inspect.getattr_static(cls, name)
        if isinstance(declared, method | listing):
            setattr(cls, name, _function(declared, is_async=issubclass(cls, Async)))


def _function(
    declared: "method[..., Any] | listing[..., Any]", *, is_async: bool
) -> Callable[..., Any]:
    """Return the function of a client, with the documentation and the signature that `help` shows.

    It is a coroutine function only where it makes one result on an event loop.
    """
    steps = declared.function
    function: Callable[..., Any]
    signature = inspect.signature(steps)
    result = get_args(signature.return_annotation)[-1]
    if isinstance(declared, listing):

        def list_items(of: Any, *args: object, **given: object) -> Any:  # noqa: ANN401
            return of._items(steps(of, *args, **given))

        function = list_items
        item = get_args(get_args(result)[-1])[0]  # of a page
        result = AsyncGenerator[item, None] if is_async else Generator[item, None, None]  # type: ignore[valid-type]
    elif is_async:

        async def run_async(of: Any, *args: object, **given: object) -> Any:  # noqa: ANN401
            return await of._run(steps(of, *args, **given))

        function = run_async
    else:

        def run(of: Any, *args: object, **given: object) -> Any:  # noqa: ANN401
            return of._run(steps(of, *args, **given))

        function = run
    functools.update_wrapper(function, steps)
    function.__annotations__ = {**steps.__annotations__, "return": result}
    setattr(function, "__signature__", signature.replace(return_annotation=result))  # noqa: B010 - mypy knows no such attribute
    return function
