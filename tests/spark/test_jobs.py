"""The jobs, through their command line where that has something of its own to show."""

import json
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.proxy import OldServer
from tests.server import ServerProcess
from tests.spark.conftest import patient
from tests.spark.test_write import bodies
from zaqar_lite.client import Client, NewMessage, Settlement
from zaqar_lite.spark import cli, jobs
from zaqar_lite.spark.jobs.dlq_report import mask
from zaqar_lite.spark.jobs.redrive import Redrive
from zaqar_lite.spark.jobs.target import Target
from zaqar_lite.spark.options import OptionError

pytestmark = pytest.mark.usefixtures("spark")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, object]]:
    code = cli.main([*map(str, words), "--master", "local[2,2]"])
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return code, document


def dead_letters(client: Client, queue: str, errors: list[str]) -> str:
    """Let messages fail until they are dead letters; return the dead-letter queue."""
    letters = f"{queue}-dlq"
    client.create_queue(letters)
    client.create_queue(queue, {"_max_claim_count": 1, "_dead_letter_queue": letters})
    client.post_all(
        queue,
        [NewMessage(body={"n": n, "error": text}, group="g") for n, text in enumerate(errors)],
    )
    while held := client.create_claim(queue, limit=1000):
        client.release_claim(queue, held.id)
    assert client.stats(letters).total == len(errors)
    return letters


def test_publish_writes_what_it_cannot_post_to_a_reject_file(
    server: ServerProcess,
    client: Client,
    queue: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "orders.csv"
    rows = (f'"{{""order"": {n}}}",{ttl}' for n, ttl in ((1, 120), (2, 5), (3, 240)))
    file.write_text("\n".join(["order,seconds", *rows]))
    words = ("publish", file, "--format", "csv", "--endpoint", server.url, "--queue", queue)
    code, told = run(capsys, *words, "--dry-run")
    assert (code, told["rows"]) == (0, 3)
    assert client.stats(queue).total == 0
    rejects = tmp_path / "rejects"
    shape = ("--ttl", "seconds", "--body", "order")
    code, told = run(capsys, *words, *shape, "--rejects", rejects, "--run-id", "r")
    assert (code, told["rows"], told["stored"], told["rejected"]) == (3, 3, 2, 1)
    assert sorted(map(str, bodies(client, queue))) == ["{'order': 1}", "{'order': 3}"]
    (line,) = [line for path in rejects.iterdir() for line in path.read_text().splitlines()]
    assert "ttl" in json.loads(line)["reason"]
    code, told = run(capsys, *words, *shape)
    assert code == 1
    assert "can't be a message" in str(told["error"])


def test_generate_archive_remove_backfill_and_stats(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    target = Target(server.url, queue, page_size=500)
    assert jobs.generate(spark, target, 300)["rows"] == 300
    assert jobs.stats(spark, target)["messages"] == 300
    assert jobs.stats(spark, target, dry_run=True) == {"dry_run": True, "messages": 300}
    place, state = str(tmp_path / "archive"), (tmp_path / "state").as_uri()
    client.post_all(queue, [NewMessage(body={"n": 1}, group="g")])
    assert jobs.archive(spark, target, place, state, dry_run=True)["rows"] == 301
    assert patient(lambda: jobs.archive(spark, target, place, state))["rows"] == 301
    assert patient(lambda: jobs.archive(spark, target, place, state))["rows"] == 0
    assert client.stats(queue).total == 301
    for name, elsewhere in ((queue, state), (f"{queue}-2", f"{state}-2")):  # would lose them
        with pytest.raises(OptionError, match="has files of another state"):
            jobs.archive(spark, Target(server.url, name), place, elsewhere, remove=True)
    assert client.stats(queue).total == 301
    seen: list[int] = []
    emptied = partial(jobs.archive, spark, target, str(tmp_path / "removed"), f"{state}/other")
    removed = patient(lambda: emptied(remove=True, on_progress=seen.append))
    assert removed["rows"] == 301
    assert set(seen) <= {0, 301}
    assert removed["bytes"] > 300 * 150
    assert client.stats(queue).total == 0
    assert spark.read.parquet(str(tmp_path / "removed")).select("id").distinct().count() == 301
    again = Target(server.url, f"{queue}-again")
    for _ in range(2):
        jobs.backfill(spark, again, place, where="get_json_object(body, '$.n') < 100")
    found = list(client.list_messages(again.queue, details=True))
    assert len(found) == 101
    assert [message.body for message in found if message.group == "g"] == [{"n": 1}]
    # An archive of long ago is skipped, and counted, unless its messages get a new life.
    old = str(tmp_path / "old")
    spark.read.parquet(place).selectExpr(
        "* except(archived, `group`)", "archived - interval 1 year as archived"
    ).write.parquet(old)
    anew = Target(server.url, f"{queue}-anew")
    told = jobs.backfill(spark, anew, old)
    assert (told["rows"], told["expired"]) == (0, 301)
    told = jobs.backfill(spark, anew, old, ttl=600)
    assert (told["stored"], told["expired"]) == (301, 0)
    with pytest.raises(PySparkException, match="ttl"):
        jobs.backfill(spark, anew, old, ttl=30)
    (hour,) = jobs.stats(spark, target, archive=place)["hours"]
    assert hour["messages"] == 301


def test_redrive_moves_what_it_is_told_and_leaves_the_rest(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    letters = dead_letters(client, queue, ["timeout", "refused"] * 10)
    target = Target(server.url, letters, page_size=7)
    plan = Redrive(where="get_json_object(body, '$.error') = 'timeout'", batch=6)
    assert jobs.redrive(spark, target, plan, dry_run=True)["moved"] == {queue: 10}
    letter = target.read(spark).first()
    assert letter is not None
    assert (letter.dlq_source_queue, letter.dlq_claim_count) == (queue, 1)
    assert letter.dlq_last_client_id == client.client_id.replace("-", "")
    assert letter.dlq_last_claim_id is not None
    # Another run posted a letter and was killed before it deleted it.
    first = next(iter(client.list_messages(letters)))
    client.post(queue, first.body, idempotency_key=f"{plan.run_id}-{first.id}", group="g")
    summary = jobs.redrive(spark, target, plan)
    assert (summary["moved"], summary["left"]) == (10, 10)
    assert [m.group for m in client.list_messages(queue, details=True)] == ["g"] * 10
    assert client.stats(letters).ready == 10
    changed = Redrive(to=f"{queue}-else", body="to_json(named_struct('was', body))")
    assert jobs.redrive(spark, target, changed)["moved"] == 10
    assert client.stats(letters).total == 0
    assert "was" in str(bodies(client, f"{queue}-else")[0])


def test_the_servers_own_job_redrives_where_there_is_no_sql(
    server: ServerProcess, client: Client, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = dead_letters(client, queue, ["timeout"] * 30)
    ids = {message.id for message in client.list_messages(letters)}
    code, told = run(capsys, "redrive", "--endpoint", server.url, "--queue", letters)
    assert (code, told["moved"], told["left"], told["rejected"]) == (0, 30, 0, 0)
    assert told["job"]
    assert {message.id for message in client.list_messages(queue)} == ids
    assert client.stats(letters).total == 0
    code, told = run(capsys, "redrive", "--endpoint", server.url, "--queue", f"{letters}-mistyped")
    assert (code, "There is no queue" in str(told["error"])) == (2, True)


def test_a_server_without_jobs_has_its_letters_moved_by_spark(
    spark: SparkSession, server: ServerProcess, client: Client, queue: str
) -> None:
    letters = dead_letters(client, queue, ["timeout"] * 5)
    with OldServer(server.url) as old:
        told = jobs.redrive(spark, Target(old.url, letters), Redrive())
    assert (told["moved"], told["left"], "job" in told) == (5, 0, False)
    assert any(words.endswith("/redrives") for words in old.seen)
    assert client.stats(letters).total == 0


def test_a_redrive_that_ends_early_holds_nothing(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    queue: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    letters = dead_letters(client, queue, ["timeout"] * 10)
    where = ("--endpoint", server.url, "--queue", letters)
    # A typo in the filter: nothing is claimed, and it is wrong usage.
    code, told = run(capsys, "redrive", *where, "--where", "nosuch=1")
    assert (code, client.stats(letters).ready) == (2, 10)
    assert "nosuch" in str(told["error"])
    counts = {message.claim_count for message in client.list_messages(letters, details=True)}
    assert counts == {1}  # that of the source's claim
    # What fails at the first letter has claimed some, and gives them back.
    plan = Redrive(body="raise_error('planted')", batch=4)
    with pytest.raises(PySparkException, match="planted"):
        jobs.redrive(spark, Target(server.url, letters), plan)
    assert client.stats(letters).ready == 10


def test_redrive_sets_aside_what_the_target_refuses_and_goes_on(
    server: ServerProcess, client: Client, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = dead_letters(client, queue, ["x" * size for size in (10, 5000, 10, 20)])
    client.create_queue(f"{queue}-small", {"_max_messages_post_size": 2000})
    where = ("--endpoint", server.url, "--queue", letters, "--to", f"{queue}-small")
    # One is too long for the target, and one is no JSON any more.
    body = "if(get_json_object(body, '$.n') = '3', '{broken', body)"
    code, told = run(capsys, "redrive", *where, "--body", body, "--batch", 3)
    assert (code, told["moved"], told["rejected"], told["left"]) == (3, 2, 2, 0)
    kept = {message.id: message.body for message in client.list_messages(letters)}
    assert sorted(len(body["error"]) for body in kept.values()) == [20, 5000]
    refused = told["refused"]
    assert isinstance(refused, list)
    assert {one["id"] for one in refused} == set(kept)
    assert "no JSON" in str(refused)
    assert client.stats(letters).ready == 2
    assert client.stats(f"{queue}-small").total == 2


def test_a_report_shows_patterns_and_no_bodies(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    queue: str,
    tmp_path: Path,
) -> None:
    errors = [f"Order {n} timed out after {n * 7} ms" for n in range(30)]
    errors += [f"no such customer 'secret-{n}' <script>" for n in range(10)]
    letters = dead_letters(client, queue, errors)
    # The reason of the last attempt says more than a text in the body.
    client.post_all(queue, [{"error": "none"}] * 3)
    claim = client.create_claim(queue, limit=3)
    assert claim is not None
    why = {"reason": "http_503", "detail": "10.0.0.7 is busy"}
    client.settle(queue, claim.id, [Settlement.dead(one, **why) for one in claim.messages])
    told = jobs.dlq_report(spark, Target(server.url, letters), str(tmp_path / "report"))
    assert (told["letters"], told["patterns"]) == (43, 3)
    page = (tmp_path / "report" / "report.html").read_text()
    assert "order # timed out after # ms" in page
    assert "<svg" in page
    assert "secret" not in page
    assert "<script" not in page
    assert "http://" not in page
    patterns = spark.read.parquet(str(tmp_path / "report" / "patterns"))
    found = {row.signature: row.letters for row in patterns.collect()}
    assert found == {
        "order # timed out after # ms": 30,
        "no such customer '#' <script>": 10,
        "http_#: # is busy": 3,
    }
    assert client.stats(letters).total == 43


def test_bodies_are_masked_by_default() -> None:
    assert mask('{"card": "4111", "n": [1, 2]}', "keys") == '{"card": "string", "n": ["number"]}'
    assert mask('{"card": "4111"}', "none") is None
    assert mask('{"card": "4111"}', "full") == '{"card": "4111"}'
