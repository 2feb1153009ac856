"""The page as the server starts it: loaded in the background, before somebody looks."""

import asyncio
import functools
from typing import TYPE_CHECKING

from zaqar_lite.ui.calls import App, Receive, Scope, Send

if TYPE_CHECKING:
    from starlette.applications import Starlette

_PAUSE = 5.0
"""Seconds from the server's start until the page is loaded, so that the start is not slowed."""


class Page:
    """The page over the API `api`, which is set before the first request.

    Its libraries and templates take a tenth of a second to load, which the first look would wait
    for. So they are loaded in a thread soon after the start; a look that comes earlier loads them.
    """

    api: App

    def __init__(self, *, authenticates: bool) -> None:
        self._authenticates = authenticates
        self._loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to wait for the moment to load."""
        self._loading = asyncio.create_task(self._load(), name="page")

    async def stop(self) -> None:
        """Wait no longer."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    async def _load(self) -> None:
        await asyncio.sleep(_PAUSE)
        await asyncio.to_thread(_load_templates)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request under `/ui`."""
        await self._made(scope, receive, send)

    @functools.cached_property
    def _made(self) -> "Starlette":
        from zaqar_lite.ui.app import make_page  # noqa: PLC0415 - its libraries delay the start

        return make_page(self.api, authenticates=self._authenticates)


def _load_templates() -> None:
    from zaqar_lite.ui.app import templates  # noqa: PLC0415

    found = templates()
    for name in found.list_templates():
        found.get_template(name)
