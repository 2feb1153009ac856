"""The sync half of the SDK is the async one, translated; and the SDK imports in no circle."""

import inspect
from pathlib import Path

import pytest

from tests.generate_sync import BY_HAND, CLIENT, generate, sources
from zaqar_lite.client import AsyncClient, Client
from zaqar_lite.client.endpoints.schedules import AsyncSchedules, SyncSchedules


@pytest.mark.parametrize("source", sources(), ids=lambda path: path.stem)
def test_a_sync_module_is_what_the_generator_makes(source: Path) -> None:
    committed = (CLIENT / "sync" / source.name).read_text(encoding="utf-8")
    assert committed == generate(source), "run `python -m tests.generate_sync`"


def test_nothing_else_is_in_the_sync_half() -> None:
    names = {path.stem for path in (CLIENT / "sync").glob("*.py")}
    assert names == {source.stem for source in sources()} | BY_HAND


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert methods(Client) == methods(AsyncClient)
    assert methods(SyncSchedules) == methods(AsyncSchedules)
    assert len(methods(Client)) > 30
