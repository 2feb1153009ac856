"""The embedded store in an object store's bucket."""

import uuid

import pytest

from tests.drivers.opendata.contract_hooks import check_database
from tests.drivers.opendata.store import Store
from tests.drivers.store import QUEUE, texts
from tests.services import S3Server
from zaqar_lite.domain.errors import Unavailable


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, with what SlateDB needs to know of it in the environment."""
    for name, value in (
        ("AWS_ENDPOINT", s3_server.url),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", s3_server.access_key),
        ("AWS_SECRET_ACCESS_KEY", s3_server.secret_key),
        ("AWS_REGION", s3_server.region),
    ):
        monkeypatch.setenv(name, value)
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
