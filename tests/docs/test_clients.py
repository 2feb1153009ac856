"""The recipes of the pages on clients and stores, run as they stand."""

from collections.abc import Iterator

import pytest

from tests.docs import pages
from tests.server import ServerProcess
from zaqar_lite.client import Client, QueueOptions

RECIPES = [block.text for block in pages.blocks(pages.SOURCE / "clients.rst", "python")]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server without authentication."""
    with ServerProcess("memory://") as running:
        yield running


@pytest.mark.filterwarnings("ignore")  # of the clients
@pytest.mark.parametrize("recipe", RECIPES, ids=["zaqarclient", "openstacksdk"])
def test_a_recipe_works(
    server: ServerProcess, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pages.URL in recipe
    code = compile(recipe.replace(pages.URL, server.url), "clients.rst", "exec")
    exec(code, {})  # noqa: S102 - our own page
    assert "'order'" in capsys.readouterr().out
    with Client(server.url, project="shop") as client:
        client.delete_queue("orders")


def test_queues_are_carried_to_the_server_of_another_store(server: ServerProcess) -> None:
    ((_, recipe),) = pages.blocks(pages.SOURCE / "stores.rst", "python")
    with ServerProcess("memory://") as other, Client(server.url) as old, Client(other.url) as new:
        old.create_queue("orders", QueueOptions(delay=1, max_failures=3, dead_letter_queue="lost"))
        old.post("orders", {"order": 1}, headers={"kind": "a"}, group="g")
        for url, its in ((pages.URL, server.url), ("http://127.0.0.1:8889", other.url)):
            assert url in recipe
            recipe = recipe.replace(url, its)
        exec(compile(recipe, "stores.rst", "exec"), {})  # noqa: S102 - our own page
        assert old.stats("orders").total == 0
        assert new.get_queue("orders") == old.get_queue("orders")
        (message,) = new.list_messages("orders", details=True)
        assert (message.body, message.headers) == ({"order": 1}, {"kind": "a"})
        assert message.group == "g"
