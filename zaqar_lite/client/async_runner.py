"""What takes the steps of its methods on an event loop: the async client, and parts of it."""

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from zaqar_lite.client.steps import Async, Pages, Steps, Stream

T = TypeVar("T")


class AsyncRunner(Async):
    """A client; a class of it has functions for the methods that its bases declare."""

    async def _run(self, steps: Steps[T]) -> T:
        """Take the steps of a method; return its result."""
        try:
            step = next(steps)
            while True:
                try:
                    outcome = await step.take_async(self)
                except BaseException as error:  # noqa: BLE001 - the steps raise it again
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _items(self, pages: Pages[T]) -> AsyncGenerator[T, None]:
        """Yield the entries of a list page by page."""
        marker: str | None = None
        try:
            while True:
                page = await self._run(pages(marker))
                for item in page.items:
                    yield item
                marker = page.marker
                if marker is None:
                    return
        finally:
            if isinstance(pages, Stream):
                await self._run(pages.close())


class AsyncPart(AsyncRunner):
    """A part of a client, which has the client take its steps."""

    _client: Any

    async def _run(self, steps: Steps[T]) -> T:
        """Have the client take the steps."""
        result: T = await self._client._run(steps)
        return result
