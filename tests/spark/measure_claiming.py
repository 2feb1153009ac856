"""What a claim stream costs, and whether several tasks that claim at a time would be faster.

`python -m tests.spark.measure_claiming [--rounds N]`, with ZAQAR_SPARK_ROWS (100,000 messages of
200 bytes). A claimer is a process that does what a task would: it claims, makes Arrow of it, writes
that to a ledger, and deletes. Then a stream writes as many messages to Parquet. Prints a line of
JSON for each: messages/s, and microseconds of CPU for each message by process.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.server import ServerProcess
from tests.spark.measure import ROWS, SETTINGS, told
from zaqar_lite.bench import machine
from zaqar_lite.client import Client
from zaqar_lite.spark import options, register
from zaqar_lite.spark.claims import claim_messages, delete_claimed
from zaqar_lite.spark.ledger import Ledger
from zaqar_lite.spark.rows import COLUMNS, to_batch
from zaqar_lite.spark.session import session

BATCH = 50_000
CLAIMERS = (1, 2, 4)


def stream_options(url: str, queue: str, state: Path) -> dict[str, str]:
    """The options of a claim stream, as fast as it gets."""
    return {
        "endpoint": url,
        "queue": queue,
        "mode": "claim",
        "stateDir": str(state),
        "pageSize": "1000",
        "maxMessagesPerTrigger": str(BATCH),
    }


def claimer(given: dict[str, str], most: int, batch: int, pipe: Connection) -> None:
    """Take `most` messages as a task would, from when it is told; tell the CPU seconds."""
    parsed = options.parse(given)
    ledger = Ledger(parsed.state_dir or "", parsed.queue)
    ledger.open()
    with parsed.client() as client:
        pipe.send("ready")
        pipe.recv()
        before, number = time.process_time(), 0
        while most > 0:
            held = claim_messages(client, parsed, min(most, batch))
            if not held:
                break
            rows = pa.Table.from_batches([to_batch(one.messages, COLUMNS) for one in held])
            claims = [(one.id, [message.id for message in one.messages]) for one in held]
            number, most = number + 1, most - rows.num_rows
            ledger.write(number, claims, rows)
            delete_claimed(client, parsed, claims)
            ledger.remove(number)
        pipe.send(time.process_time() - before)


def claim(server: ServerProcess, queue: str, place: Path, claimers: int) -> dict[str, Any]:
    """Empty a queue by so many processes."""
    spawning = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(claimers):
        here, there = spawning.Pipe()
        given = stream_options(server.url, queue, place / f"{queue}-{number}")
        share = (given, -(-ROWS // claimers), BATCH // claimers, there)
        process = spawning.Process(target=claimer, args=share)
        process.start()
        pipes.append(here)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    before, started = by_process(server), time.monotonic()
    for pipe in pipes:
        pipe.send("go")
    spent = sum(pipe.recv() for pipe in pipes)
    took = time.monotonic() - started
    cpu = by_process(server)["server"] - before["server"]
    for process in processes:
        process.join()
    return figures(took, {"server": cpu, "claimers": spent})


def stream(spark: SparkSession, server: ServerProcess, queue: str, place: Path) -> dict[str, Any]:
    """Empty a queue by a claim stream to Parquet."""
    before, started = by_process(server), time.monotonic()
    rows = spark.readStream.format("zaqar").options(
        **stream_options(server.url, queue, place / f"{queue}-s")
    )
    query = (
        rows.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place / f"{queue}-c"))
        .trigger(availableNow=True)
        .start(str(place / f"{queue}-p"))
    )
    after = dict(before)
    while query.isActive:
        time.sleep(0.1)
        for name, seconds in by_process(server).items():
            after[name] = max(seconds, after.get(name, 0))  # a process of Spark's may have ended
    took = time.monotonic() - started
    phases: Counter[str] = Counter()
    for progress in query.recentProgress:
        phases.update(progress.durationMs)
    planning, writing = phases["latestOffset"] / 1000, phases["addBatch"] / 1000
    cpu = {name: seconds - before.get(name, 0) for name, seconds in after.items()}
    return figures(took, cpu) | {"claiming_s": planning, "writing_s": writing}


def figures(took: float, cpu: dict[str, float]) -> dict[str, Any]:
    each = {f"{name}_us": round(seconds * 1e6 / ROWS, 1) for name, seconds in cpu.items()}
    return {"messages_per_second": round(ROWS / took), **each}


def by_process(server: ServerProcess) -> dict[str, float]:
    """CPU seconds so far: the server with its store's process, Spark's Python, its JVM."""
    serving = {server.pid, *machine.descendants(server.pid)}
    found: defaultdict[str, float] = defaultdict(float)
    found["server"] = machine.cpu_seconds(list(serving))
    for pid in set(machine.descendants(os.getpid())) - serving:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        name = "jvm" if b"java" in command.partition(b"\0")[0] else "python"
        found[name] += machine.cpu_seconds([pid])
    return found


def fill(server: ServerProcess, queue: str) -> None:
    """Post the messages."""
    with Client(server.url) as client:
        client.post_all(queue, ({"n": n, "text": "x" * 178} for n in range(ROWS)))


def empty(server: ServerProcess, queue: str) -> None:
    """Stop where something is left, since the figure would be of something else."""
    with Client(server.url) as client:
        left = client.stats(queue).total
        client.delete_queue(queue)
    if left:
        raise SystemExit(f"{left} messages are left in {queue}")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    told(step="machine", **machine.describe(), rows=ROWS, rounds=rounds)
    kept: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        spark = session("local[2]", **{"spark.local.dir": name, "spark.driver.memory": "3g"})
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        with ServerProcess(f"embedded://{place / 'store'}", env=SETTINGS) as server:
            for turn in range(rounds + 1):
                for claimers in (*CLAIMERS, None) if turn else (None,):  # Spark, to be warm
                    queue = uuid.uuid4().hex
                    fill(server, queue)
                    if claimers is None:
                        step, found = "stream to Parquet", stream(spark, server, queue, place)
                    else:
                        step = f"{claimers} claimers"
                        found = claim(server, queue, place, claimers)
                    empty(server, queue)
                    if not turn:
                        continue
                    told(round=turn, step=step, load=os.getloadavg()[0], **found)
                    for figure, value in found.items():
                        kept[step][figure].append(value)
        spark.stop()
    for step, values in kept.items():
        told(median_of=rounds, step=step, **{k: statistics.median(v) for k, v in values.items()})


if __name__ == "__main__":
    main()
