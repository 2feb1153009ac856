"""Records of the SDK, and the sync client that is generated from the async one."""

import datetime as dt
import inspect
import typing
from collections.abc import AsyncGenerator, Generator

import pytest

from tests.generate_sync import TARGETS, generate
from zaqar_lite.client import AccessKey, AsyncClient, Client, Pool, Stats
from zaqar_lite.client.endpoints.schedules import AsyncSchedules, SyncSchedules
from zaqar_lite.client.serialization import reader


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


def test_a_method_is_a_function_of_its_client_with_the_result_that_it_has() -> None:
    """Also one that is written once, as steps."""
    assert typing.get_type_hints(Client.get_pool)["return"] is Pool
    assert typing.get_type_hints(Client.list_pools)["return"] == Generator[Pool, None, None]
    assert typing.get_type_hints(AsyncClient.list_pools)["return"] == AsyncGenerator[Pool, None]
    assert inspect.iscoroutinefunction(AsyncClient.get_pool)
    assert not inspect.iscoroutinefunction(Client.get_pool)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Client("http://127.0.0.1:1").get_pool()  # type: ignore[call-arg]


NOON = dt.datetime(2030, 1, 2, 12, tzinfo=dt.UTC)


def test_the_sdks_own_records_are_read() -> None:
    key = reader(AccessKey)({"id": "k", "project": None, "grants": ["*:*"], "disabled": False})
    assert key == AccessKey("k", None, ("*:*",), None, None, disabled=False)
    newest = {
        "href": "/m",
        "age": 1,
        "created": "2030-01-02T12:00:00Z",
        "newer": "than this client",
    }
    stats = reader(Stats)({"total": 2, "free": 1, "claimed": 1, "newest": newest})
    assert stats.newest is not None
    assert (stats.newest.created, stats.ready, stats.oldest) == (NOON, None, None)
    for entry in ({}, {"id": None}, {"identity": "k"}):
        with pytest.raises(ValueError, match="id"):
            reader(AccessKey)(entry)
