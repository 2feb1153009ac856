"""A virtual host of its own for every test, on the broker that the run started."""

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from urllib.parse import quote

import httpx
import pytest
from aio_pika.abc import AbstractConnection as Connection

from tests.server import ServerProcess
from tests.services import RabbitServer
from zaqar_lite.rabbitmq import amqp
from zaqar_lite.rabbitmq.management import Management


@dataclass(frozen=True)
class Host:
    """A virtual host: where it is, by AMQP and by management API."""

    server: RabbitServer
    name: str

    @property
    def amqp_url(self) -> str:
        return f"{self.server.url.rpartition('/')[0]}/{quote(self.name, safe='')}"

    @property
    def management_url(self) -> str:
        return self.server.management_url

    def management(self) -> Management:
        return Management(self.management_url, vhost=self.name)

    def put(self, path: str, body: object, *, method: str = "PUT") -> None:
        """Do by hand what no part of ours would."""
        url = f"{self.management_url}/api/{path}"
        httpx.request(method, url, json=body).raise_for_status()

    def limited(self, user: str, **rights: str) -> str:
        """Give a user of its own these rights, and no others; return its address."""
        self.put(f"users/{user}", {"password": "p", "tags": ""})
        none = dict.fromkeys(("configure", "write", "read"), "^$")
        self.put(f"permissions/{quote(self.name, safe='')}/{user}", none | rights)
        return self.amqp_url.replace("guest:guest", f"{user}:p")

    def messages(self) -> dict[str, int]:
        """Count the messages of the queues that are not empty; up to 10 s old."""
        url = f"{self.management_url}/api/queues/{quote(self.name, safe='')}"
        listed = httpx.get(url).raise_for_status().json()
        return {one["name"]: one["messages"] for one in listed if one.get("messages")}


@pytest.fixture
def host(rabbitmq_server: RabbitServer) -> Iterator[Host]:
    name = f"zaqar/{uuid.uuid4().hex[:12]}"  # a slash, so that quoting is tested everywhere
    url = f"{rabbitmq_server.management_url}/api/vhosts/{quote(name, safe='')}"
    httpx.put(url).raise_for_status()
    yield Host(rabbitmq_server, name)
    httpx.delete(url)


@pytest.fixture
async def connection(host: Host) -> AsyncIterator[Connection]:
    """A connection to the virtual host."""
    async with amqp.connected(host.amqp_url) as made:
        yield made


@pytest.fixture(scope="module")
def zaqar() -> Iterator[ServerProcess]:
    with ServerProcess("memory://") as server:
        yield server
