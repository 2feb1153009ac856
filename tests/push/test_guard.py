"""The guard: every network of its list, and the ways around it that are known."""

import asyncio
import ipaddress
import socket
import threading
from contextlib import suppress
from importlib.resources import files
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.push.receiver import Receiver, serving
from tests.waiting import until
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.push import webhook
from zaqar_lite.push.guard import Guard, Refused, denied_networks, is_denied, port_of
from zaqar_lite.push.webhook import Webhooks
from zaqar_lite.service.delivery.attempt import Answer, Notification

pytestmark = pytest.mark.anyio
LISTED = [
    line.partition("#")[0].strip()
    for line in (files("zaqar_lite.push") / "denied_networks.txt").read_text().splitlines()
    if line.partition("#")[0].strip()
]


NEVER = """
0.0.0.1 10.0.0.1 100.64.0.1 127.0.0.1 169.254.169.254 172.16.0.1 192.0.0.1 192.0.0.9 192.0.2.1
192.88.99.1 192.168.0.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 168.63.129.16
:: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:10.0.0.1 64:ff9b::8.8.8.8 64:ff9b:1::1 100::1 2001::1 2001:20::1
2001:db8::1 2002:7f00:1:: 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff00::1 ff02::1
0.0.0.0 255.255.255.255 ::ffff:127.0.0.1 64:ff9b::7f00:1 fe80::1%eth0
::ffff:0:127.0.0.1 ::ffff:0:10.0.0.1 1000::1 4000::1 6000::1 8000::1 c000::1
"""
"""An address of each row that must be refused, so that no line of the list gets lost, and some that
hide one."""


class Names(AbstractResolver):
    """A name service of ours: each answer in turn, the last one for good."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in answer
        ]

    async def close(self) -> None:
        """Nothing is open."""


def notification(url: str, project: str = "p") -> Notification:
    return Notification(url, {"content-type": "application/json"}, b"{}", {}, project)


async def send(url: str, guard: Guard | None = None, **given: Any) -> Answer:
    """Send one notification, over connections of its own."""
    webhooks = Webhooks(guard or Guard(), **given)
    try:
        return await webhooks.send(notification(url))
    finally:
        await webhooks.close()


def test_refuses_both_ends_of_every_listed_network_and_what_is_known_to_slip_through() -> None:
    """Public addresses pass, at the ports of web servers."""
    ends: list[str] = []
    for network in map(ipaddress.ip_network, LISTED):
        assert network in denied_networks()
        ends += [str(network[0]), str(network[-1])]
    for address in (*ends, *NEVER.split()):
        with pytest.raises(Refused, match="may not be called"):
            Guard().check(address, 443)
    for address in ("8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"):
        Guard().check(address, 443)
        assert not is_denied(ipaddress.ip_address(address))
    for port in (0, 22, 25, 81, 1023):
        with pytest.raises(Refused, match="port"):
            Guard().check("8.8.8.8", port)
    with pytest.raises(ConfigurationError, match="delivery_allowed"):
        Guard(["10.1.0.0/40"])


def test_allows_networks_with_and_without_a_port_but_never_its_own() -> None:
    guard = Guard(
        ["10.1.0.0/16", "10.2.0.3/32:8080", "[fd00::/8]:443", "127.0.0.0/8"], own_ports=[8888]
    )
    guard.check("10.1.2.3", 5000)
    guard.check("10.2.0.3", 8080)
    guard.check("fd00::7", 443)
    guard.check("127.0.0.1", 9999)
    for host, port in (
        ("10.2.0.3", 8081),
        ("fd00::7", 80),
        ("10.3.0.1", 443),
        ("127.0.0.1", 8888),
        ("::ffff:127.0.0.1", 8888),
    ):
        with pytest.raises(Refused):
            guard.check(host, port)


def test_knows_the_port_of_a_store() -> None:
    assert port_of("redis://:secret@host:7000/0") == 7000
    assert port_of("redis://host") == 6379
    assert port_of("mongodb://a,b,c/db") == 27017
    assert port_of("embedded:data") == port_of("memory://") == 0


async def test_never_reaches_this_machine_however_it_is_written() -> None:
    async with Receiver() as receiver:
        for host in ("127.0.0.1", "localhost", "0x7f.1", "127.1", "2130706433"):
            answer = await send(receiver.url.replace("127.0.0.1", host))
            assert answer.status is None
            assert "127" not in answer.error
        assert receiver.received == []
    names = Names(("8.8.8.8", "10.0.0.1"))  # one bad address is enough
    assert (await send("http://mixed.example/", resolver=names, total=2)).refused


async def test_a_name_that_changes_its_meaning_is_refused_at_the_next_connection() -> None:
    async with Receiver() as receiver:
        port = receiver.url.rpartition(":")[2]
        names = Names(("8.8.8.8",), ("127.0.0.1",))
        assert await names.resolve("x")  # at some earlier time it was good
        answer = await send(f"http://rebinding.example:{port}/", resolver=names)
        assert (answer.refused, receiver.received) == (True, [])
        assert answer.error == "refused: the target is in a network that may not be called"
        assert names.asked[-1] == "rebinding.example."


async def test_silent_names_hold_up_no_other_project(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    ask = socket.getaddrinfo

    def answer(host: str, *hints: Any) -> Any:
        if host.startswith("silent"):
            released.wait(20)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return ask("127.0.0.1", *hints)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    async with Receiver() as receiver:
        port = receiver.url.rpartition(":")[2]
        webhooks = Webhooks(Guard(["127.0.0.0/8"]))
        silent = [
            asyncio.create_task(webhooks.send(notification(f"http://silent-{n}.example/")))
            for n in range(100)
        ]
        try:
            await asyncio.sleep(0.1)
            async with asyncio.timeout(10):
                good = notification(f"http://good.example:{port}/", "q")
                answered = await webhooks.send(good)
            assert answered.status == 204
        finally:
            released.set()
            await asyncio.gather(*silent)
            await webhooks.close()


async def test_so_many_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_MOST_KEPT", 3)
    connections: set[asyncio.StreamWriter] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n{}"):
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        connections.discard(writer)
        writer.close()

    webhooks = Webhooks(Guard(["127.0.0.0/8"]), resolver=Names(("127.0.0.1",)))
    async with serving(answer) as url:
        for number in range(10):
            named = url.replace("127.0.0.1", f"host-{number}.example")
            sent = await webhooks.send(notification(named))
            assert sent.status == 204
        await until(lambda: len(connections) <= 3, seconds=5)
        await webhooks.close()
        await until(lambda: not connections)


async def test_an_allowed_name_may_mean_anything_except_our_own_ports() -> None:
    async with Receiver() as receiver:
        port = int(receiver.url.rpartition(":")[2])
        for own, status in (((), 204), ((port,), None)):
            guard = Guard(["inner.example"], own_ports=own)
            for url in (f"http://inner.example:{port}/", f"http://INNER.example.:{port}/"):
                sent = await send(url, guard, resolver=Names(("127.0.0.1",)))
                assert sent.status == status
            other = f"http://other.example:{port}/"
            assert (await send(other, guard, resolver=Names(("127.0.0.1",)))).refused


async def test_uses_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Receiver() as proxy, Receiver() as receiver:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert (await send(receiver.url, Guard(["127.0.0.0/8"]))).status == 204
        assert (len(proxy.received), len(receiver.received)) == (0, 1)


@pytest.mark.parametrize(
    ("subscriber", "refused"),
    [
        ("http://127.0.0.1:9999/", True),
        ("http://localhost:9999/", True),
        ("https://[::1]/hook", True),
        ("http://[::ffff:10.0.0.1]/", True),
        ("trust+https://192.168.1.5/", True),
        ("http://8.8.8.8:22/", True),
        ("http://8.8.8.8/", False),
        ("http://10.1.2.3:8080/", False),
        ("http://10.1.2.3:8081/", True),
        ("http://receiver.internal/", False),
        ("http://nobody.example/", False),  # names are judged when they are dialled
        ("http://8.8.8.8:99999/", False),
        ("mailto:a@b.org", False),
        ("queue:orders", False),
    ],
)
def test_the_url_of_a_subscriber_shows_that_it_is_refused(subscriber: str, refused: bool) -> None:
    guard = Guard(["10.1.2.3/32:8080", "receiver.internal"], own_ports=[8888])
    assert (guard.refusal(subscriber) is not None) is refused
