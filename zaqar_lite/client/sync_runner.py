# Generated from async_runner.py by tests/generate_sync.py; change it there.
"""What takes the steps of its methods in the caller's thread: the sync client, and parts of it."""

from collections.abc import Generator
from typing import Any, TypeVar

from zaqar_lite.client.steps import Pages, Steps, Stream, Sync

T = TypeVar("T")


class SyncRunner(Sync):
    """A client; a class of it has functions for the methods that its bases declare."""

    def _run(self, steps: Steps[T]) -> T:
        """Take the steps of a method; return its result."""
        try:
            step = next(steps)
            while True:
                try:
                    outcome = step.take(self)
                except BaseException as error:  # noqa: BLE001 - the steps raise it again
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as done:
            result: T = done.value
            return result

    def _items(self, pages: Pages[T]) -> Generator[T, None, None]:
        """Yield the entries of a list page by page."""
        marker: str | None = None
        try:
            while True:
                page = self._run(pages(marker))
                yield from page.items
                marker = page.marker
                if marker is None:
                    return
        finally:
            if isinstance(pages, Stream):
                self._run(pages.close())


class SyncPart(SyncRunner):
    """A part of a client, which has the client take its steps."""

    _client: Any

    def _run(self, steps: Steps[T]) -> T:
        """Have the client take the steps."""
        result: T = self._client._run(steps)
        return result
