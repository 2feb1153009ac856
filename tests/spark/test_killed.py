"""A driver that is killed in the middle of its work, for real, and one that goes on from there."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.proxy import Fault, Proxy, nth
from tests.services.process import Service
from tests.services.s3 import S3Server
from tests.spark.conftest import environment, finished, in_bucket, in_hdfs
from tests.spark.killed_driver import PLAN, to_files
from tests.spark.test_jobs import dead_letters
from tests.spark.test_write import bodies
from zaqar_lite.client import Client
from zaqar_lite.spark import jobs
from zaqar_lite.spark.jobs.target import Target

ROOT = Path(__file__).parents[2]


def kill_in_the_middle(words: list[str], proxy: Proxy, place: Path) -> None:
    """Start the driver, and kill it with its JVM when both of its jobs hang.

    Spark waits ten seconds for a Python process to start. A driver that a busy machine ends by that
    is started again: it goes on from where it was, as after the kill.
    """
    log, until = place / "log", time.monotonic() + 900
    driver = start(words, log)
    try:
        while not (proxy.held.is_set() and (place / "reached").exists()):
            assert time.monotonic() < until, log.read_text()[-3000:]
            if driver.poll() is not None:
                log_text = log.read_text().lower()
                assert "timed out" in log_text or "connect back" in log_text, log_text[-3000:]
                driver = start(words, log)
            time.sleep(0.1)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start the driver in a process group of its own."""
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.killed_driver", *words],
            cwd=log.parent,
            env=environment(ROOT),
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


class Scene(NamedTuple):
    """Where a driver is killed."""

    client: Client
    proxy: Proxy
    queue: str
    place: Path


@pytest.fixture
def scene(client: Client, proxy: Proxy, queue: str, tmp_path: Path) -> Scene:
    return Scene(client, proxy, queue, tmp_path)


def test_a_killed_driver_loses_nothing_and_what_it_began_is_finished_once(
    spark: SparkSession, scene: Scene
) -> None:
    kill_and_go_on(spark, scene, (scene.place / "ledger").as_uri())
    assert not (scene.place / "file:").exists()  # a URI is no path


@pytest.mark.skipif("ZAQAR_TEST_ALL" not in os.environ, reason="half a minute: tests/run --all")
def test_a_killed_driver_goes_on_from_a_ledger_in_an_object_store(
    spark: SparkSession, scene: Scene, s3_server: S3Server
) -> None:
    kill_and_go_on(spark, scene, in_bucket(s3_server))


@pytest.mark.skipif("ZAQAR_TEST_ALL" not in os.environ, reason="half a minute: tests/run --all")
def test_a_killed_driver_goes_on_from_a_ledger_in_hdfs(
    spark: SparkSession, scene: Scene, hdfs_server: Service
) -> None:
    kill_and_go_on(spark, scene, in_hdfs(hdfs_server))


def kill_and_go_on(spark: SparkSession, scene: Scene, ledger: str) -> None:
    """Kill a driver whose stream keeps its claims in `ledger`, and go on with another."""
    client, proxy, queue, tmp_path = scene
    errors = [f"error {number}" for number in range(30)]
    letters = dead_letters(client, f"{queue}-source", errors)
    client.post_all(queue, range(100), in_flight=1)
    # Two deletes a batch: in the middle of the second.
    proxy.choose = nth("DELETE", lambda number: number >= 3, Fault.HOLD)
    (tmp_path / "hang").touch()
    words = [client.url, proxy.url, queue, letters, str(tmp_path), ledger]
    kill_in_the_middle(words, proxy, tmp_path)
    (tmp_path / "hang").unlink()

    # In the middle, indeed: some is done, some is claimed, some was posted and not deleted.
    assert client.stats(queue).claimed == 40
    moved = client.stats(f"{queue}-source").total
    assert moved + client.stats(letters).total > len(errors)

    # The claims of the dead driver's stream are still its own: the next one goes on with them.
    finished(lambda: to_files(spark, client.url, queue, tmp_path, ledger))
    lines = [json.loads(line) for line in written(tmp_path / "out")]
    assert sorted(int(line["body"]) for line in lines) == list(range(100))
    assert len({line["id"] for line in lines}) == 100
    assert client.stats(queue).total == 0

    # Those of its other job lapse, here by our hand.
    held = {message.claim_id for message in client.list_messages(letters, include_claimed=True)}
    for claim_id in held - {None}:
        client.release_claim(letters, str(claim_id))
    summary = jobs.redrive(spark, Target(client.url, letters, page_size=5), PLAN)
    assert summary["lost"] == summary["rejected"] == 0
    assert client.stats(letters).total == 0
    found = sorted(str(body) for body in bodies(client, f"{queue}-source"))
    assert found == sorted(str({"n": n, "error": text}) for n, text in enumerate(errors))


def written(place: Path) -> list[str]:
    """Read what the sink's own log says was committed."""
    log = place / "_spark_metadata"
    files = [
        Path(json.loads(line)["path"].removeprefix("file://"))
        for entry in sorted(log.iterdir())
        if not entry.name.startswith(".")
        for line in entry.read_text().splitlines()[1:]
    ]
    return [line for file in files for line in file.read_text().splitlines()]
