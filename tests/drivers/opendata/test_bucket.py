"""The store in an object store's bucket, and an object store that does not answer."""

import socket
import uuid
from collections.abc import Iterator

import pytest

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import Store
from tests.drivers.store import QUEUE, texts
from tests.server import ServerProcess
from tests.services import S3Server
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.storage.opendata import slatedb as slatedb_engine
from zaqar_lite.storage.opendata.slatedb import SlateDbEngine


def set_environment(monkeypatch: pytest.MonkeyPatch, url: str, key: str, secret: str) -> None:
    """Tell SlateDB in the environment where its object store is."""
    for name, value in (
        ("AWS_ENDPOINT", url),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", key),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket."""
    set_environment(monkeypatch, s3_server.url, s3_server.access_key, s3_server.secret_key)
    name = f"zaqar-{uuid.uuid4().hex}"
    s3_server.make_bucket(name)
    return name


@pytest.mark.anyio
async def test_the_store_works_in_a_bucket(bucket: str) -> None:
    remote = Store(f"opendata+s3://{bucket}/prefix")
    await remote.messages.open()
    await remote.post("first", "second")
    assert texts(await remote.claim(1)) == ["first"]
    await remote.restart()
    assert texts(await remote.claim()) == ["second"]
    await check_database(remote.db)
    newcomer = Store(f"opendata+s3://{bucket}/prefix")
    await newcomer.messages.open()  # an object store has no lock: the newcomer wins
    with pytest.raises(Unavailable):
        await remote.post("fenced")
    with pytest.raises(Unavailable, match="another server has taken it over"):
        await remote.db._reopen_place()  # or the two would take it from each other for ever
    with pytest.raises(Unavailable):
        await remote.messages.stats(QUEUE)
    await newcomer.post("third")
    assert (await newcomer.messages.stats(QUEUE)).claimed == 2
    await newcomer.messages.close()
    await remote.messages.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """An object store that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        set_environment(monkeypatch, f"http://127.0.0.1:{listener.getsockname()[1]}", "id", "x")
        yield listener


def test_a_signal_ends_a_start_that_waits_for_an_object_store(silent: socket.socket) -> None:
    with ServerProcess("opendata+s3://bucket/prefix").start(ready=None) as server:
        connection, _ = silent.accept()
        with connection:
            assert server.terminate() == 0
        assert "stopped before it was ready" in server.log()


@pytest.mark.anyio
async def test_an_object_store_that_does_not_answer_is_told(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slatedb_engine, "_OPENING_REMOTE", 0.5)
    engine = SlateDbEngine.in_bucket("bucket", "prefix")
    with pytest.raises(Unavailable, match=r"no answer in 0\.5 seconds.*AWS_ENDPOINT"):
        await engine.open()
    await engine.close()
    silent.close()
