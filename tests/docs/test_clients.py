"""The recipes of the page on clients, run as they stand."""

from collections.abc import Iterator

import pytest

from tests.docs import pages
from tests.server import ServerProcess
from zaqar_lite.client import Client

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
