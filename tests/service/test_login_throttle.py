"""The pace of credentials that nobody knows yet."""

import asyncio

import pytest

from zaqar_lite.domain.errors import TooMany
from zaqar_lite.service.identity import login_throttle as module
from zaqar_lite.service.identity.login_throttle import LookupLimits

pytestmark = pytest.mark.anyio


async def test_who_gave_up_waiting_lets_nobody_else_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 0.02)
    pace = LookupLimits(60)

    async def go() -> None:
        async with pace.turn("192.0.2.1"):
            pass

    async with pace.turn("192.0.2.1"):
        for _ in range(2):
            with pytest.raises(TooMany):
                await asyncio.wait_for(go(), 5)
    await go()
