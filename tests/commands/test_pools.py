"""What operators set: quotas, pools and flavors, by the command line and the SDK."""

from collections.abc import Iterator

import pytest

from tests.commands.running import Run
from tests.server import ServerProcess

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
