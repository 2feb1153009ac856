"""Records of the SDK, and the sync client that is generated from the async one."""

import inspect

from tests.generate_sync import TARGETS, generate
from zaqar_lite.client import AsyncClient, Client
from zaqar_lite.client.endpoints.schedules import AsyncSchedules, SyncSchedules


def test_the_sync_client_is_what_the_generator_makes() -> None:
    for one in TARGETS:
        committed = one.read_text(encoding="utf-8")
        assert committed == generate(one), "run `python -m tests.generate_sync`"


def public(kind: type) -> dict[str, list[tuple[object, ...]]]:
    """Return the arguments of each method: names, kinds and defaults."""
    return {
        name: [
            (one.name, one.kind, one.default)
            for one in inspect.signature(method).parameters.values()
        ]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    assert public(Client) == public(AsyncClient)
    assert public(SyncSchedules) == public(AsyncSchedules)
    assert len(public(Client)) > 60
    assert all(inspect.getdoc(getattr(Client, name)) for name in public(Client))
