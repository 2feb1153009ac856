"""Streams of several queues, from an instant, in batches worth it, and how far they are."""

import datetime as dt
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.server import ServerProcess
from tests.spark.test_parts import ID, options, values
from zaqar_lite.client import Client, Forbidden
from zaqar_lite.spark import browsing
from zaqar_lite.spark.browsing import BrowseStream, QueueRange, browse
from zaqar_lite.spark.claiming import ClaimStream
from zaqar_lite.spark.options import ExtraColumn, OptionError, parse


def ids_of(reader: BrowseStream, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return [one for part in reader.partitions(start, end) for one in values(reader.read(part))]


def test_several_queues_share_a_batch_and_none_starves(
    server: ServerProcess, client: Client, queue: str
) -> None:
    other = f"{queue}-other"
    ids = client.post_batch(queue, range(10))
    few = client.post_batch(other, range(2))
    reader = BrowseStream(options(server.url, f"{queue},{other}", pageSize=4), ID)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxRows(6))
    assert first["counts"] == {queue: 3, other: 2}
    assert ids_of(reader, start, first) == ids[:3] + few
    second = reader.latestOffset(first, ReadMaxRows(100))
    assert ids_of(reader, first, second) == ids[3:]
    assert reader.latestOffset(second, ReadMaxRows(100)) == second


def test_a_stream_of_a_pattern_takes_in_queues_that_are_new(
    server: ServerProcess, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "_LOOK_AGAIN", 0.0)
    one, another, later = (f"{queue}-{name}" for name in ("one", "another", "later"))
    client.post_batch(f"other-{queue}", ["not this one"])
    old = client.post_batch(one, range(2))
    client.create_queue(another)
    parsed = parse({
        "endpoint": server.url, "queuePattern": f"{queue}-*", "startingPosition": "latest"
    })  # fmt: skip
    reader = BrowseStream(parsed, ID)
    start = reader.initialOffset()
    assert start["markers"] == {one: old[-1], another: ""}
    new = client.post_batch(one, [3])
    first_of_all = client.post_batch(later, range(3))
    batch = reader.latestOffset(start, ReadMaxRows(100))
    assert batch["counts"] == {one: 1, later: 3}
    assert sorted(ids_of(reader, start, batch)) == sorted(new + first_of_all)
    # A query that starts again reads the same batch before it looks which queues there are.
    again = BrowseStream(parsed, ID)
    assert sorted(ids_of(again, start, batch)) == sorted(new + first_of_all)
    # What is frozen does not grow by a queue that comes later, and a deleted queue ends nothing.
    again.prepareForTriggerAvailableNow()
    client.post_batch(f"{queue}-last", [1])
    assert again.latestOffset(batch, ReadMaxRows(100)) == batch
    client.delete_queue(later)
    rest = reader.latestOffset(batch, ReadMaxRows(100))
    assert rest["counts"] == {f"{queue}-last": 1}
    assert later not in rest["markers"]


def test_a_stream_begins_at_an_instant(server: ServerProcess, client: Client, queue: str) -> None:
    client.post_batch(queue, range(3))
    time.sleep(0.02)  # the server's clock is this machine's
    between = dt.datetime.now(dt.UTC)
    time.sleep(0.02)
    later = client.post_batch(queue, range(2))
    reader = BrowseStream(options(server.url, queue, startingPosition=between.isoformat()), ID)
    start = reader.initialOffset()
    assert ids_of(reader, start, reader.latestOffset(start, ReadMaxRows(9))) == later
    with pytest.raises(OptionError, match="'startingPosition' must be earliest, latest or an inst"):
        options(server.url, queue, startingPosition="yesterday")


@pytest.mark.parametrize("mode", ["browse", "claim"])
def test_a_batch_waits_until_it_is_worth_it(
    server: ServerProcess, client: Client, queue: str, tmp_path: Path, mode: str
) -> None:
    client.post_batch(queue, range(3))

    def reader(**given: object) -> BrowseStream | ClaimStream:
        ours = options(server.url, queue, mode=mode, stateDir=tmp_path / str(given), **given)
        return (ClaimStream if mode == "claim" else BrowseStream)(ours, ID)

    patient = reader(minMessagesPerTrigger=4)
    start = patient.initialOffset()
    assert patient.latestOffset(start, ReadMaxRows(9)) == start
    client.post(queue, 4)
    assert patient.latestOffset(start, ReadMaxRows(9)) != start
    patient.stop()
    client.post_batch(queue, range(2))
    hurried = reader(minMessagesPerTrigger=9, maxTriggerDelay=0.01)
    time.sleep(0.02)
    start = hurried.initialOffset()
    assert hurried.latestOffset(start, ReadMaxRows(9)) != start
    hurried.stop()
    frozen = reader(minMessagesPerTrigger=99)
    frozen.prepareForTriggerAvailableNow()
    client.post(queue, 9)
    frozen.stop()


def test_further_columns_by_option(server: ServerProcess, client: Client, queue: str) -> None:
    before = dt.datetime.now(dt.UTC)
    client.post(queue, {"n": 1}, headers={"key": "k"}, group="7")
    held = client.create_claim(queue, limit=1)
    assert held is not None
    client.release_claim(queue, held.id)
    names = ("value", "timestamp", "key", "group", "attempts", "failure_count")
    given = options(server.url, queue, columns=",".join(names))
    assert given.columns == names == get_args(ExtraColumn)
    (row,) = [
        row
        for batch in browse(client, given, QueueRange(queue, None, None), names)
        for row in batch.to_pylist()
    ]
    assert (row["value"], row["key"], row["group"]) == (b'{"n":1}', "k", "7")
    assert before <= row["timestamp"] <= dt.datetime.now(dt.UTC)
    assert [one["outcome"] for one in row["attempts"]] == ["released"]
    with pytest.raises(OptionError, match=r"'columns'.*one of value"):
        options(server.url, queue, columns="colour")


def test_a_key_in_a_file_proves_who_asks_and_for_which_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, file = tmp_path / "admin", tmp_path / "key"
    options = ("--auth", "keys", "--admin-key-file", str(admin))
    with ServerProcess("memory://", *options).start(ready=401) as server:
        with Client(server.url, key=admin.read_text().strip()) as operator:
            made = operator.create_key(["*:*"], project="acme")
        file.write_text(f"{made.key}\n")
        given = {"endpoint": server.url, "keyFile": str(file)}
        with parse(given).client() as client:
            client.post("orders", 1)  # in its own project, though none is named
        with parse({**given, "project": "acme"}).client() as client:
            assert client.stats("orders").total == 1
        monkeypatch.setenv("ZAQAR_LITE_PROJECT", "another")
        with parse(given).client() as client, pytest.raises(Forbidden):
            client.stats("orders")
        assert str(made.key) not in repr(parse(given))
    with pytest.raises(OptionError, match="Can't prove who asks"):
        parse({**given, "keyFile": "/no/such/file"}).client()
    with pytest.raises(OptionError, match="one of 'keyFile'"):
        parse({**given, "cloud": "devstack"})
