"""The page is loaded by the first look, in a thread, so that no other request waits for it."""

import asyncio
import threading
from typing import Any

import pytest

from zaqar_lite.ui import app
from zaqar_lite.ui.page import Page

pytestmark = pytest.mark.anyio


async def test_the_first_looks_load_the_page_once_and_hold_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[threading.Thread] = []
    looked: list[str] = []

    async def show(scope: Any, *_: Any) -> None:
        looked.append(scope["path"])

    def make_page(*_: Any, **__: Any) -> Any:
        made.append(threading.current_thread())
        return show

    monkeypatch.setattr(app, "make_page", make_page)
    app.templates.cache_clear()
    page = Page(authenticates=False)
    page.api = show
    assert app.templates.cache_info().currsize == 0
    one, other = (page({"path": path}, *[None] * 2) for path in "ab")  # type: ignore[arg-type]
    await asyncio.gather(one, other)
    assert sorted(looked) == ["a", "b"]
    (thread,) = made
    assert thread is not threading.main_thread()
    assert len(app.templates().cache or ()) == len(app.templates().list_templates()) > 0
