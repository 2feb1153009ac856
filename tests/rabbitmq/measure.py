"""Print the guide's tables: accuracy by number of hops, publish rate, entities per maximum.

    python -m tests.rabbitmq.measure [--messages N] [--lateness] [--waiting N] [--url amqp://... ]

Without a URL it starts a broker of its own. Lateness is measured beside kombu's own delays.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections import defaultdict
from pathlib import Path

from tests.rabbitmq.traffic import collecting, publish_units
from tests.services import start_rabbit
from tests.services.environments import KOMBU
from tests.services.rabbitmq import RabbitServer
from zaqar_lite.rabbitmq import amqp
from zaqar_lite.rabbitmq.topology import Anchor, QueueType, Topology, bits_for

MAXIMA = [("15 s", 15), ("15 min", 900), ("1 h", 3600), ("1 day", 86_400), ("14 days", 1_209_600)]
MAXIMA += [("1 year", 31_536_000), ("4.25 years", 2**27 - 1), ("17 years", 2**29 - 1)]


def entities() -> None:
    """Print the entities per maximum."""
    print(
        f"{'maximum':<12}{'bits':>6}{'exchanges':>11}{'queues':>8}{'bindings':>10}{'key bytes':>11}"
    )
    for text, maximum in MAXIMA:
        topology = Topology(bits_for(maximum))
        numbers = (len(topology.exchanges), len(topology.queues), len(topology.bindings))
        key = len(topology.routing_key(0))
        print(
            f"{text:<12}{topology.bits:>6}{numbers[0]:>11}{numbers[1]:>8}{numbers[2]:>10}{key:>11}"
        )


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def accuracy(url: str) -> None:
    """Print how late messages are: 8 bits of 20 ms, every delay four times, little load."""
    print(f"\n{'queues':<10}{'hops':>6}{'messages':>10}{'mean ms':>10}{'p99 ms':>10}{'early':>7}")
    for queue_type in QueueType:
        topology = Topology(8, unit_ms=20, queue_type=queue_type, prefix=f"m{queue_type}")
        late: dict[int, list[float]] = defaultdict(list)
        async with amqp.connected(url) as connection:
            await amqp.declare(connection, topology)
            async with collecting(connection, f"{topology.prefix}.zaqar") as collector:
                for _ in range(4):
                    sent = await publish_units(connection, topology, range(256), together=4)
                    await collector.wait_for(sent, seconds=60)
                    for message_id, units in sent.items():
                        (arrival,) = collector.arrivals.pop(message_id)
                        late[units.bit_count()].append(arrival.late_ms)
            await amqp.remove(connection, topology)
        for hops, values in sorted(late.items()):
            early = sum(value < 0 for value in values)
            mean, p99 = statistics.mean(values), percentile(values, 0.99)
            print(f"{queue_type:<10}{hops:>6}{len(values):>10}{mean:>10.1f}{p99:>10.1f}{early:>7}")


async def rate(url: str, messages: int) -> None:
    """Print how fast messages are published with confirms, and come out."""
    print(f"\n{'bits':>5}  {'queues':<9}{'anchor':<8}{'publish/s':>10}{'through/s':>11}")
    cases = [(8, QueueType.QUORUM, Anchor.RIGHT), (8, QueueType.CLASSIC, Anchor.RIGHT)]
    cases += [(27, QueueType.QUORUM, Anchor.RIGHT), (27, QueueType.QUORUM, Anchor.LEFT)]
    for bits, queue_type, anchor in cases:
        topology = Topology(
            bits,
            unit_ms=20,
            queue_type=queue_type,
            anchor=anchor,
            prefix=f"r{bits}{queue_type}{anchor}",
        )
        async with amqp.connected(url) as connection:
            await amqp.declare(connection, topology)
            async with collecting(connection, f"{topology.prefix}.zaqar") as collector:
                began = time.monotonic()
                delays = [number % 64 for number in range(messages)]
                sent = await publish_units(connection, topology, delays, together=256)
                published = time.monotonic() - began
                await collector.wait_for(sent, seconds=300)
                through = time.monotonic() - began
            await amqp.remove(connection, topology)
        out, passed = messages / published, messages / through
        print(f"{bits:>5}  {queue_type:<9}{anchor:<8}{out:>10.0f}{passed:>11.0f}")


async def lateness(url: str, messages: int = 1000) -> None:
    """Print how late messages of 1 to 60 s are, in the shape that the command line makes."""
    topology = Topology(bits_for(60), prefix="minute")
    async with amqp.connected(url) as connection:
        await amqp.declare(connection, topology)
        async with collecting(connection, "minute.zaqar") as collector:
            delays = [1 + number % 60 for number in range(messages)]
            sent = await publish_units(connection, topology, delays, together=1)
            await collector.wait_for(sent, seconds=120)
        await amqp.remove(connection, topology)
    late = [each.late_ms for (each,) in collector.arrivals.values()]
    columns = ("messages", "p50 ms", "p99 ms", "max ms")
    print(f"\n{'1..60 s':<10}{''.join(f'{name:>10}' for name in columns)}{'early':>7}")
    show_lateness("quorum", late)
    show_lateness("kombu", await asyncio.to_thread(kombus_lateness, url, messages))


def kombus_lateness(url: str, messages: int) -> list[float]:
    """How many milliseconds late messages are that kombu delays."""
    done = subprocess.run(
        [KOMBU.program("python"), Path(__file__).with_name("kombu_side.py"), url, str(messages)],
        capture_output=True,
        check=True,
    )
    late: list[float] = json.loads(done.stdout)
    return late


def show_lateness(name: str, late: list[float]) -> None:
    """Print a line of that table."""
    p50, p99 = percentile(late, 0.5), percentile(late, 0.99)
    early = sum(value < 0 for value in late)
    print(f"{name:<10}{len(late):>10}{p50:>10.1f}{p99:>10.1f}{max(late):>10.1f}{early:>7}")


async def memory(broker: RabbitServer, messages: int) -> None:
    """Print what messages that wait an hour cost the broker, by the kind of their queues."""
    print(f"\n{'waiting':<10}{'messages':>10}{'MiB before':>12}{'MiB with':>10}{'bytes each':>12}")
    for queue_type in QueueType:
        topology = Topology(12, queue_type=queue_type, prefix=f"w{queue_type}")
        async with amqp.connected(broker.url) as connection:
            await amqp.declare(connection, topology)
            before = resident(broker)
            delays = [3600 + number % 60 for number in range(messages)]
            await publish_units(connection, topology, delays, together=256)
            await asyncio.sleep(5)
            with_them = resident(broker)
            await amqp.remove(connection, topology, force=True)
        each = (with_them - before) / messages
        mib = before / 2**20, with_them / 2**20
        print(f"{queue_type:<10}{messages:>10}{mib[0]:>12.0f}{mib[1]:>10.0f}{each:>12.0f}")


def resident(broker: RabbitServer) -> int:
    """The bytes of the broker's process."""
    status = json.loads(broker.control("status", "--formatter", "json"))
    return int(status["memory"]["total"]["rss"])


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--url")
    parser.add_argument("--lateness", action="store_true", help="that of 1 to 60 s alone")
    parser.add_argument("--waiting", type=int, help="the memory of so many that wait alone")
    arguments = parser.parse_args()
    if arguments.waiting:
        with start_rabbit(management=False) as broker:
            asyncio.run(memory(broker, arguments.waiting))
        return
    if not arguments.lateness:
        entities()
    if arguments.url:
        asyncio.run(measure(arguments.url, arguments))
    else:
        with start_rabbit(management=False) as broker:
            asyncio.run(measure(broker.url, arguments))


async def measure(url: str, arguments: argparse.Namespace) -> None:
    """Print the tables that need a broker."""
    if not arguments.lateness:
        await accuracy(url)
        await rate(url, arguments.messages)
    await lateness(url)


if __name__ == "__main__":
    main()
