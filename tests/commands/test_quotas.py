"""Quotas on the command line and in the SDK."""

import pytest

from tests.commands.running import Run
from tests.server import ServerProcess
from zaqar_lite.client import AsyncClient, NotFound

pytestmark = pytest.mark.anyio


def test_quotas_are_set_shown_and_reset(run: Run) -> None:
    code, rows = run("quota", "set", "shop", "queues=1", "messages=none")
    assert code == 0
    assert {"quota": "queues", "limit": 1, "used": 0} in rows
    assert run("queue", "create", "a", "--project", "shop")[0] == 0
    assert run("queue", "create", "b", "--project", "shop")[0] == 1
    for words in (("shop",), ("--project", "shop")):
        _, rows = run("quota", "show", *words)
        shown = {row["quota"]: (row.get("limit"), row.get("used")) for row in rows}
        assert shown["queues"] == (1, 1)
        assert shown["messages"] == (None, 0)
    assert run("quota", "reset", "shop") == (0, [])
    assert run("queue", "create", "b", "--project", "shop")[0] == 0
    for wrong in ("queues", "queues=x", "queus=1", "queues=-1"):
        assert run("quota", "set", "shop", wrong)[0] != 0


async def test_only_admin_mode_sets_quotas_where_nobody_authenticates() -> None:
    with ServerProcess("memory://") as process:
        async with AsyncClient(process.url) as client:
            assert (await client.show_quota()).quotas["queues"] is None
            with pytest.raises(NotFound):
                await client.set_quota("p", queues=1)
