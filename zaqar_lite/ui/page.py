"""The page as the server knows it: loaded when somebody first looks."""

import asyncio
from typing import TYPE_CHECKING

from zaqar_lite.ui.calls import App, Receive, Scope, Send

if TYPE_CHECKING:
    from starlette.applications import Starlette


class Page:
    """The page over the API `api`, which is set before the first request.

    Its libraries and templates take a tenth of a second to load. The first look waits for that;
    other requests do not, because a thread does it.
    """

    api: App

    def __init__(self, *, authenticates: bool) -> None:
        self._authenticates = authenticates
        self._loading: asyncio.Task[Starlette] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request under `/ui`."""
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(self._load))
        page = await asyncio.shield(self._loading)
        await page(scope, receive, send)

    def _load(self) -> "Starlette":
        from zaqar_lite.ui.app import make_page, templates  # noqa: PLC0415 - slow to import

        found = templates()
        for name in found.list_templates():
            found.get_template(name)
        return make_page(self.api, authenticates=self._authenticates)
