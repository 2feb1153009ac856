"""Methods of both clients, each written once: as the steps that it takes, without I/O.

The steps of a method are a generator of requests, pauses and logins. `Client` takes them in the
caller's thread, and `AsyncClient` on an event loop: there the same method is a coroutine.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, overload

from zaqar_lite.client.calls import Page, Steps

P = ParamSpec("P")
T = TypeVar("T")
Pages = Callable[[str | None], Steps[Page[T]]]
"""The steps to a page of a list, by its marker; None is the first page's."""


class Async:
    """What takes the steps of its methods on an event loop."""

    async def _run(self, steps: Steps[T]) -> T:
        """Take the steps of a method; return its result."""
        raise NotImplementedError

    async def _items(self, pages: Pages[T]) -> AsyncIterator[T]:
        """Yield the entries of a list page by page."""
        marker: str | None = None
        while True:
            page = await self._run(pages(marker))
            for item in page.items:
                yield item
            marker = page.marker
            if marker is None:
                return

    def __init_subclass__(cls) -> None:
        _declare(cls, lambda one: one.asynchronous())


class Sync:
    """What takes the steps of its methods in the caller's thread."""

    def _run(self, steps: Steps[T]) -> T:
        """Take the steps of a method; return its result."""
        raise NotImplementedError

    def _items(self, pages: Pages[T]) -> Iterator[T]:
        """Yield the entries of a list page by page."""
        marker: str | None = None
        while True:
            page = self._run(pages(marker))
            yield from page.items
            marker = page.marker
            if marker is None:
                return

    def __init_subclass__(cls) -> None:
        _declare(cls, lambda one: one.synchronous())


class method(Generic[P, T]):  # noqa: N801 - a decorator
    """A method that makes one result; the function returns its steps."""

    def __init__(self, function: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self.function = function

    @overload
    def __get__(self, of: Async, kind: object = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, of: Sync, kind: object = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, of: None, kind: object = None) -> Callable[..., Any]: ...
    def __get__(self, of: object, kind: object = None) -> Any:
        """Tell a type checker what the method is; a class of a client has functions instead."""
        return self

    def asynchronous(self) -> Callable[..., Any]:
        """Return the function of an async client."""

        async def function(of: Async, *args: P.args, **given: P.kwargs) -> T:
            return await of._run(self.function(of, *args, **given))

        return _described(function, self.function)

    def synchronous(self) -> Callable[..., Any]:
        """Return the function of a sync client."""

        def function(of: Sync, *args: P.args, **given: P.kwargs) -> T:
            return of._run(self.function(of, *args, **given))

        return _described(function, self.function)


class listing(Generic[P, T]):  # noqa: N801 - a decorator
    """A method that yields the entries of a list; the function returns the steps to its pages."""

    def __init__(self, function: Callable[Concatenate[Any, P], Pages[T]]) -> None:
        self.function = function

    @overload
    def __get__(self, of: Async, kind: object = None) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, of: Sync, kind: object = None) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, of: None, kind: object = None) -> Callable[..., Any]: ...
    def __get__(self, of: object, kind: object = None) -> Any:
        """Tell a type checker what the method is; a class of a client has functions instead."""
        return self

    def asynchronous(self) -> Callable[..., Any]:
        """Return the function of an async client."""

        def function(of: Async, *args: P.args, **given: P.kwargs) -> AsyncIterator[T]:
            return of._items(self.function(of, *args, **given))

        return _described(function, self.function, AsyncIterator)

    def synchronous(self) -> Callable[..., Any]:
        """Return the function of a sync client."""

        def function(of: Sync, *args: P.args, **given: P.kwargs) -> Iterator[T]:
            return of._items(self.function(of, *args, **given))

        return _described(function, self.function, Iterator)


def _declare(cls: type, make: Callable[["method[..., Any] | listing[..., Any]"], Any]) -> None:
    """Give a class functions for the methods that its bases declare."""
    for name in dir(cls):
        declared = inspect.getattr_static(cls, name)
        if isinstance(declared, method | listing):
            setattr(cls, name, make(declared))


def _described(
    function: Callable[..., Any],
    declared: Callable[..., Any],
    iterator: Any = None,  # noqa: ANN401 - Iterator or AsyncIterator
) -> Callable[..., Any]:
    """Give a function the name, the documentation and the signature that `help` shows."""
    functools.update_wrapper(function, declared)
    signature = inspect.signature(declared)
    result = get_args(signature.return_annotation)[-1]
    if iterator is not None:
        (page,) = get_args(result)[-1:]  # of the steps to a page
        result = iterator[get_args(page)[0]]
    function.__annotations__ = {**declared.__annotations__, "return": result}
    function.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    return function
