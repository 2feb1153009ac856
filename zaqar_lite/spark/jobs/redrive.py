"""Move dead letters back to where they came from, or elsewhere.

A batch is claimed, filtered and changed in SQL, posted, and then deleted with its claims. A letter
is posted with a key made of its id and the run, so a job that is killed at any moment and run
again moves each letter once: what was posted and not deleted is posted again under the same key,
which the server recognises, and then deleted. What the filter leaves stays in the queue.
"""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, expr, lit

from zaqar_lite.client import ClaimLost, Client, Held
from zaqar_lite.spark.jobs.target import Summary, Target
from zaqar_lite.spark.options import parse
from zaqar_lite.spark.renewal import Renewal
from zaqar_lite.spark.rows import COLUMNS, SCHEMA, to_row


@dataclass(frozen=True, slots=True)
class Redrive:
    """What to move: `where` and `body` are SQL over the columns of the data source.

    Attributes:
        to: the target; None for the queue that each letter came from.
        where: which letters.
        body: the new body, JSON text.
        rate: messages a second over the whole job.
        run_id: two runs with the same id never move a letter twice.
        batch: letters claimed at a time.
        ttl: seconds that a message lives in its target.
        claim_ttl: seconds that a claim outlives a job that is killed.
    """

    to: str | None = None
    where: str | None = None
    body: str | None = None
    rate: float | None = None
    run_id: str = "redrive"
    batch: int = 10_000
    ttl: int | None = None
    claim_ttl: int = 300


def redrive(
    spark: SparkSession, target: Target, plan: Redrive, *, dry_run: bool = False
) -> Summary:
    """Move the letters of `target`'s queue; a dry run counts them by their targets."""
    if plan.to == target.queue:
        message = f"{target.queue} can't be moved into itself"
        raise ValueError(message)
    if dry_run:
        rows = _chosen(target.read(spark), plan).groupBy("queue").count().collect()
        return {"dry_run": True, "moved": {row["queue"]: row["count"] for row in rows}}
    summary: Summary = {"moved": 0, "left": 0, "lost": 0, "retries": 0}
    options = parse(target.options() | {"claimTtl": str(plan.claim_ttl)})
    renewal = Renewal(options)
    unmoved: list[str] = []
    with target.client() as client:
        try:
            number = 0
            while held := _claim(client, target, plan):
                number += 1
                renewal.add(number, [{"id": one.id} for one in held])
                _move(client, target, plan, held, summary, spark=spark)
                # Kept until the end, so that the same letters are not claimed again.
                unmoved += [one.id for one in held]
        finally:
            renewal.stop()
            for claim_id in unmoved:
                client.release_claim(target.queue, claim_id)
    return summary


def _claim(client: Client, target: Target, plan: Redrive) -> list[Held]:
    claims: list[Held] = []
    while sum(len(one.messages) for one in claims) < plan.batch:
        held = client.create_claim(
            target.queue, limit=target.page_size, ttl=plan.claim_ttl, details=True, raw=True
        )
        if held is None:
            break
        claims.append(held)
    return claims


def _move(
    client: Client,
    target: Target,
    plan: Redrive,
    held: list[Held],
    summary: Summary,
    *,
    spark: SparkSession,
) -> None:
    rows: list[Any] = [to_row(message, COLUMNS) for one in held for message in one.messages]
    letters = spark.createDataFrame(rows, SCHEMA).repartition(2)
    chosen = _chosen(letters, plan).cache()
    ids = {row["id"] for row in chosen.select("id").collect()}
    if ids:
        done = target.write(chosen.drop("id"), ttl=plan.ttl, rate=plan.rate, numPartitions=2)
        summary["retries"] += done["retries"]
    chosen.unpersist()
    for one in held:
        mine = [message.id for message in one.messages if message.id in ids]
        try:
            client.delete_messages(target.queue, mine, claim_ids=[one.id])
            summary["moved"] += len(mine)
        except ClaimLost:
            # Another holder has them: they are in both queues, as with any claim that lapses.
            summary["lost"] += len(mine)
    summary["left"] += len(rows) - len(ids)


def _chosen(letters: DataFrame, plan: Redrive) -> DataFrame:
    rows = letters.where(plan.where) if plan.where else letters
    goal = col("dlq_source_queue") if plan.to is None else lit(plan.to)
    return rows.where(goal.isNotNull()).select(
        goal.alias("queue"),
        expr(plan.body or "body").alias("body"),
        "headers",
        concat(lit(f"{plan.run_id}-"), col("id")).alias("key"),
        "id",
    )
