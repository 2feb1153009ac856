"""Measure the pipeline on this machine: `python -m tests.spark.measure [--rounds N]`.

Environment: ZAQAR_SPARK_ROWS (100,000 rows, bodies of 200 bytes), ZAQAR_SPARK_STORE (an embedded
store in a temporary directory). Spark is `local[2]` and warm, the server one process. Every round
takes each figure once, `zaqar-lite bench` on the same server among them; ratios are taken within a
round. Each step checks by `stats` that exactly the messages are there that should be, and stops
the run where they are not. Prints a line of JSON for each step of a round, then the medians.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.server import ServerProcess
from tests.spark.losing_proxy import LosingProxy
from zaqar_lite.bench import machine
from zaqar_lite.client import Client
from zaqar_lite.spark import jobs, register
from zaqar_lite.spark.jobs.publish import Publication
from zaqar_lite.spark.jobs.target import Target
from zaqar_lite.spark.session import session

ROWS = int(os.environ.get("ZAQAR_SPARK_ROWS", "100000"))
PARTITIONS = 8
TTL = 86_400
SETTINGS = {
    "ZAQAR_LITE_MAX_MESSAGES_PER_PAGE": "1000",
    "ZAQAR_LITE_MAX_MESSAGES_PER_CLAIM_OR_POP": "1000",
    # Every row has a key, and all of them may come within one window.
    "ZAQAR_LITE_MAX_IDEMPOTENCY_KEYS": str(max(1_000_000, 2 * ROWS)),
}
Figures = dict[str, float]


class Measurement:
    """The steps of a round, on one server and one session."""

    def __init__(self, spark: SparkSession, server: ServerProcess, place: Path) -> None:
        self.spark = spark
        self.url = server.url
        self.place = place
        self.file = str(place / "rows.parquet")

    def prepare(self) -> None:
        """Write the rows, and warm up what is to be measured."""
        filler = 200 - len('{"n":1234567,"text":""}')
        body = f"to_json(named_struct('n', 1000000 + id, 'text', repeat('x', {filler}))) as body"
        rows = self.spark.range(0, ROWS, 1, PARTITIONS).selectExpr(body)
        rows.write.mode("overwrite").parquet(self.file)
        warm = Target(self.url, "warm", page_size=1000)
        jobs.generate(self.spark, warm, 2000)
        jobs.archive(self.spark, warm, str(self.place / "w"), str(self.place / "ws"), remove=True)

    def bench(self, seconds: float) -> Figures:
        """Measure what the server takes in with keys, a hundred messages a POST."""
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            subprocess.run(
                [
                    *(sys.executable, "-m", "zaqar_lite.cli", "bench", "--url", self.url),
                    *("--scenario", "post100", "--keys", "--seconds", str(seconds)),
                    *("--json", file.name),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            found = json.loads(Path(file.name).read_text())["results"][0]
        return {"messages_per_second": round(found["messages_per_second"])}

    def publish(self, queue: str, url: str | None = None) -> Figures:
        """Publish the file; the rate is from the first POST to the last answer."""
        started = time.monotonic()
        publication = Publication(self.file, body="body", ttl=str(TTL))
        done = jobs.publish(self.spark, Target(url or self.url, queue), publication)
        total = time.monotonic() - started
        self.exactly(queue, ROWS)
        return {
            "messages_per_second": round(ROWS / done["posting_seconds"]),
            "posting_seconds": done["posting_seconds"],
            "total_seconds": round(total, 2),
            "retries": done["retries"],
        }

    def publish_with_failures(self, queue: str) -> Figures:
        """Publish through a proxy that loses the answer of every tenth POST."""
        with LosingProxy(self.url) as proxy:
            proxy.lose = lambda number: number % 10 == 9
            figures = self.publish(queue, proxy.url)
            return {**figures, "lost": proxy.lost}

    def claim(self, queue: str) -> Figures:
        """Read the queue to Parquet by claiming; nothing is left behind."""
        out, state = self.place / f"out-{queue}", self.place / f"state-{queue}"
        target = Target(self.url, queue, page_size=1000)
        started = time.monotonic()
        done = jobs.archive(self.spark, target, str(out), str(state), remove=True, batch=50_000)
        total = time.monotonic() - started
        self.exactly(queue, 0)
        written = self.spark.read.parquet(str(out)).select("id").distinct().count()
        if done["rows"] != ROWS or written != ROWS:
            sys.exit(f"{queue}: {done['rows']} rows were read and {written} written, not {ROWS}")
        shutil.rmtree(out)
        return {"messages_per_second": round(ROWS / total), "total_seconds": round(total, 2)}

    def report(self, queue: str) -> Figures:
        """Make the report over letters of many patterns; the time after the read is told apart."""
        letters = Target(self.url, queue, page_size=1000)
        started = time.monotonic()
        done = jobs.dlq_report(self.spark, letters, str(self.place / "report"))
        total = time.monotonic() - started
        if done["letters"] != ROWS:
            sys.exit(f"the report is about {done['letters']} letters, not {ROWS}")
        return {
            "after_the_read_seconds": done["report_seconds"],
            "read_seconds": done["read_seconds"],
            "total_seconds": round(total, 2),
        }

    def letters(self, queue: str) -> None:
        """Let every message of a queue become a dead letter of one of 50 errors."""
        source, dead = f"{queue}-source", f"{queue}-dead"
        with Client(self.url, page_size=1000) as client:
            client.create_queue(dead)
            client.create_queue(source, {"_max_claim_count": 1, "_dead_letter_queue": dead})
            body = (
                "to_json(named_struct('error', concat('step ', char(97 + id % 25), ' failed for ',"
                " 'customer ', id), 'order', id, 'kind', if(id % 2 = 0, id, null))) as body"
            )
            rows = self.spark.range(0, ROWS, 1, PARTITIONS).selectExpr(body)
            Target(self.url, source).write(rows, ttl=TTL)
            while held := client.create_claim(source, limit=1000):
                client.release_claim(source, held.id)
        self.exactly(dead, ROWS)

    def exactly(self, queue: str, expected: int) -> None:
        """Stop the run unless a queue holds so many messages."""
        with Client(self.url, page_size=1000) as client:
            total = client.stats(queue).total
        if total != expected:
            sys.exit(f"{queue} holds {total} messages, not {expected}")

    def drop(self, *queues: str) -> None:
        """Delete queues, so that the rounds have the same server before them."""
        with Client(self.url) as client:
            for queue in queues:
                client.delete_queue(queue)


def one_round(measured: Measurement, seconds: float) -> Iterator[tuple[str, Figures]]:
    """Take each figure once; yield each when it is there."""
    name = uuid.uuid4().hex
    bench = measured.bench(seconds)
    yield "bench post100 --keys", bench

    def beside(figures: Figures) -> Figures:
        ratio = figures["messages_per_second"] / bench["messages_per_second"]
        return {**figures, "of_bench": round(ratio, 3)}

    yield "publish", beside(measured.publish(f"{name}-a"))
    yield "claim to Parquet", measured.claim(f"{name}-a")
    failing = beside(measured.publish_with_failures(f"{name}-b"))
    yield "publish, every tenth answer lost", failing
    measured.drop(f"{name}-a", f"{name}-b")
    measured.letters(name)
    yield "dlq-report", measured.report(f"{name}-dead")
    measured.drop(f"{name}-source", f"{name}-dead")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bench-seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    told(step="machine", **machine.describe(), rows=ROWS, rounds=arguments.rounds)
    kept: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        store = os.environ.get("ZAQAR_SPARK_STORE", f"embedded://{place / 'store'}")
        spark = session("local[2,3]", **{"spark.local.dir": name, "spark.driver.memory": "3g"})
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        with ServerProcess(store, env=SETTINGS) as server:
            measured = Measurement(spark, server, place)
            measured.prepare()
            for number in range(arguments.rounds):
                for step, figures in one_round(measured, arguments.bench_seconds):
                    told(round=number + 1, step=step, load=os.getloadavg()[0], **figures)
                    for figure, value in figures.items():
                        kept[step][figure].append(value)
        spark.stop()
    for step, values in kept.items():
        medians = {figure: statistics.median(found) for figure, found in values.items()}
        told(median_of=arguments.rounds, step=step, **medians)


def told(**figures: Any) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
