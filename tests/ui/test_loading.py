"""The page is loaded soon after the start, so that the first look need not wait for it."""

import asyncio

import pytest

from zaqar_lite.ui import app, page

pytestmark = pytest.mark.anyio


async def test_templates_are_compiled_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_PAUSE", 0)
    app.templates.cache_clear()
    made = page.Page(authenticates=False)
    made.start()
    (loading,) = [task for task in asyncio.all_tasks() if task.get_name() == "page"]
    await loading
    assert app.templates.cache_info().currsize == 1
    assert len(app.templates().cache or ()) == len(app.templates().list_templates()) > 0
    await made.stop()


async def test_a_server_that_stops_at_once_loads_nothing() -> None:
    app.templates.cache_clear()
    made = page.Page(authenticates=False)
    made.start()
    await made.stop()
    assert app.templates.cache_info().currsize == 0
