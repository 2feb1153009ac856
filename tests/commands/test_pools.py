"""What operators set: quotas, pools and flavors, by the command line and the SDK."""

from collections.abc import Iterator

import pytest

from tests.commands.running import Run
from tests.server import ServerProcess
from zaqar_lite.client import (
    AsyncClient,
    Client,
    Conflict,
    Flavor,
    Forbidden,
    NotFound,
    Pool,
    ServerWarning,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def pooled() -> Iterator[ServerProcess]:
    """A server with pools."""
    with ServerProcess("memory://", "--admin-mode", "--pooling") as process:
        yield process


def test_pools_and_flavors_are_made_shown_changed_and_deleted(
    run: Run, pooled: ServerProcess
) -> None:
    url = pooled.url
    uri = "redis://me:secret@localhost:1/0"
    made = run("pool", "create", "one", uri, "--weight", "7", "--options", '{"a": 1}', url=url)
    assert made == (0, [])
    assert run("pool", "create", "two", "memory://", url=url)[0] == 0
    _, rows = run("pool", "list", url=url)
    assert [row["name"] for row in rows] == ["one", "two"]
    assert rows[0]["uri"] == "redis://***@localhost:1/0"
    _, rows = run("pool", "update", "one", "--weight", "0", url=url)
    assert rows[0]["weight"] == 0
    assert run("flavor", "create", "fast", "one", "two", url=url) == (0, [])
    _, rows = run("flavor", "show", "fast", url=url)
    assert rows[0]["pools"] == ["one", "two"]
    assert run("flavor", "update", "fast", "one", url=url)[0] == 0
    _, rows = run("flavor", "list", url=url)
    assert [row["pools"] for row in rows] == [["one"]]
    _, rows = run("pool", "show", "one", url=url)
    assert rows[0]["flavor"] == "fast"
    assert run("pool", "delete", "one", url=url)[0] == 1
    assert run("flavor", "delete", "fast", url=url) == (0, [{"name": "fast", "deleted": True}])
    assert run("flavor", "delete", "fast", url=url)[0] == 3
    assert run("pool", "delete", "one", url=url) == (0, [{"name": "one", "deleted": True}])
    assert run("pool", "delete", "one", url=url)[0] == 3
    assert run("pool", "drain", "two", url=url)[0] == 1  # its weight is not 0
    assert run("pool", "update", "two", "--weight", "0", url=url)[0] == 0
    _, rows = run("pool", "drain", "two", url=url)
    assert (rows[0]["pool"], rows[0]["state"]) == ("two", "running")
    _, rows = run("pool", "drain", "two", "--status", url=url)
    assert rows[0]["messages_moved"] == 0
    for wrong in (("update", "two"), ("create", "x", uri, "--options", "[]"), ("show", "one")):
        assert run("pool", *wrong, url=url)[0] != 0
    assert run("pool", "delete", "two", url=url) == (0, [{"name": "two", "deleted": True}])


async def test_the_clients_know_pools_and_flavors(pooled: ServerProcess) -> None:
    warned: list[ServerWarning] = []
    async with AsyncClient(pooled.url, project="async", on_warning=warned.append) as client:
        for n in range(12):
            await client.create_pool(f"p{n:02}", f"redis://u:p@localhost:1/{n}", options={"a": 1})
        assert len(warned) == 12
        names = [pool.name async for pool in client.list_pools()]
        assert names == [f"p{n:02}" for n in range(12)]
        expected = Pool("p03", "redis://***@localhost:1/3", 100, None, {"a": 1})
        assert await client.get_pool("p03") == expected
        with pytest.raises(Conflict):
            await client.update_pool("p03", uri="redis://u:p@localhost:1/4")
        await client.create_flavor("fast", ["p01", "p02"])
        assert (await client.update_flavor("fast", ["p02"])).pools == ("p02",)
        flavor = Flavor("fast", ("p02",), ("FIFO", "CLAIMS", "AOD", "HIGH_THROUGHPUT"))
        assert await client.get_flavor("fast") == flavor
        assert [one async for one in client.list_flavors()] == [flavor]
    with Client(pooled.url, project="async") as sync:
        with pytest.raises(Forbidden):
            sync.delete_pool("p02")
        sync.delete_flavor("fast")
        for pool in sync.list_pools():
            sync.delete_pool(pool.name)
        with pytest.raises(NotFound):
            sync.get_flavor("fast")
        assert list(sync.list_pools()) == []


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
