"""No URI, query or password of a store is ever said, whatever is wrong with it."""

import asyncio

import pytest

from tests.server import serve_in_vain
from zaqar_lite.cli import main
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ZaqarLiteError
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.server.loading import load
from zaqar_lite.storage.registry import create_stores
from zaqar_lite.storage.swift.locks import SharedLocks

SECRET = "sesame"
WRONG = [
    "memory://:sesame@host",
    "memory://host?key=sesame",
    "mysql://u:sesame@host",
    "redis://u:sesame@[::1",
    "redis://u:ses%6@me:sesame@host:port",
    "redis://:sesame",
    "redis://u:sesame@host:sesame",
    "redis://u:sesame@host/sesame",
    "redis://:a/sesame@host/0",
    "redis://:a#sesame@host/0",
    "redis://u:p@host?timeout=sesame",
    "redis+sentinel://u:sesame@host",
    "redis+cluster://u:sesame@host/1",
    "mongodb://u:sesame@host:port/db",
    "mongodb://u:ses:sesame@host/db",
    "mongodb://u:sesame@host/db?w=sesame",
    "mongodb://u:sesame@host/db?nonsense=sesame",
    "mongodb://u:sesame@host/db?authMechanism=sesame",
    "mongodb://u:sesame@host/db?authMechanism=PLAIN&authMechanismProperties=sesame",
    "mongodb://u:sesame@host/d.sesame.b",
    "mongodb://:sesame",
    "swift+http://u:sesame@host?timeout=sesame",
    "swift+http://u:sesame@host?prefix=sesame.sesame",
    "swift+http://u:sesame@?connections=0",
    "swift+http://:sesame",
    "embedded://u:sesame@host/path",
    "embedded:path?key=sesame",
    "opendata+s3://u:sesame@bucket/prefix",
    "opendata+s3://bucket?key=sesame",
]


@pytest.mark.parametrize("uri", WRONG)
def test_a_store_that_can_not_be_made_keeps_its_secrets(uri: str) -> None:
    async def open_it() -> None:
        messages, management = create_stores(uri, clock=Clock(), options=StoreOptions())
        async with messages, management:
            pass

    with pytest.raises(ZaqarLiteError) as caught:
        asyncio.run(asyncio.wait_for(open_it(), 20))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("uri", [uri for uri in WRONG if uri.startswith(("emb", "open"))])
def test_the_store_commands_keep_them_too(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", uri]) == 2
    assert SECRET not in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "nonsense://u:sesame@host?key=sesame",
        "redis://u:sesame@127.0.0.1:1?db=sesame",
        "redis://u:sesame@127.0.0.1:1?lock_timeout=60",
        "redis://u:sesame@127.0.0.1:port",
    ],
)
def test_the_lock_service_keeps_them_too(url: str) -> None:
    with pytest.raises(ZaqarLiteError) as caught:
        asyncio.run(SharedLocks(url, 60, "zaqar").open())
    assert SECRET not in str(caught.value)


def test_a_server_keeps_them_too() -> None:
    for words in (
        ["--store", "redis://u:sesame@127.0.0.1:1/9x"],
        ["--store", "memory://", "--management-store", "redis://u:sesame@host:port"],
    ):
        done = serve_in_vain(*words)
        assert done.returncode != 0
        assert SECRET not in done.stdout + done.stderr


def test_settings_do_not_show_them() -> None:
    uri = "redis://u:sesame@host"
    settings = load(
        environment={},
        overrides={
            "store": uri,
            "management_store": uri,
            "store_options": {"key": SECRET, "coordination_url": uri},
        },
    )
    assert SECRET not in repr(settings)
