"""Move dead letters back to where they came from, or elsewhere.

A batch is claimed, filtered and changed in SQL, posted, and then deleted with its claims. A letter
is posted with a key made of its id and the run, so a job that is killed at any moment and run
again moves each letter once: what was posted and not deleted is posted again under the same key,
which the server recognises, and then deleted. What the filter leaves, and what the target refuses,
stays in the queue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, expr, lit

from zaqar_lite.client import Client, Held, Refused
from zaqar_lite.client.endpoints.jobs import NO_SUCH_ROUTE
from zaqar_lite.spark.claiming import Renewal, claim_messages, delete_claimed, release_claims
from zaqar_lite.spark.jobs.target import Summary, Target
from zaqar_lite.spark.options import OptionError, parse
from zaqar_lite.spark.queues import check_queues
from zaqar_lite.spark.rows import COLUMNS, schema_with, to_batch

_CLAIM_TTL = 300
"""Seconds that the claims of a job that is killed outlive it."""
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Redrive:
    """What to move: `where` and `body` are SQL over the columns of the data source.

    Attributes:
        to: the target; None for the queue that each letter came from.
        where: which letters.
        body: the new body, JSON text.
        rate: messages a second over the whole job.
        run_id: two runs with the same id never move a letter twice.
        batch: letters claimed at a time, 10,000 at most.
        ttl: seconds that a message lives in its target.
        server: whether the server's own job does it, where there is no SQL and the server has
            such jobs. It keeps ids and attempts, and needs no `run_id`: it moves each letter once.
    """

    to: str | None = None
    where: str | None = None
    body: str | None = None
    rate: float | None = None
    run_id: str = "redrive"
    batch: int = 10_000
    ttl: int | None = None
    server: bool = True


def redrive(
    spark: SparkSession, target: Target, plan: Redrive, *, dry_run: bool = False
) -> Summary:
    """Move the letters of `target`'s queue; a dry run counts them by their targets.

    The summary says how many were moved, left by the filter, rejected by the target (with the
    first reasons), and lost to other consumers because a claim lapsed.

    Raises:
        OptionError: the target is the queue itself, the batch is too large, or there is no queue.
        AnalysisException: the filter or the body is wrong; nothing was claimed.
    """
    if plan.to == target.queue:
        raise OptionError(f"{target.queue} can't be moved into itself")
    if not 1 <= plan.batch <= 10_000:
        raise OptionError(f"a batch has 1 to 10,000 letters, not {plan.batch}")
    # A wrong filter fails before it claims.
    _chosen(spark.createDataFrame([], schema_with(["group"])), plan)
    if dry_run:
        rows = _chosen(target.read(spark, columns="group"), plan).groupBy("queue").count().collect()
        return {"dry_run": True, "moved": {row["queue"]: row["count"] for row in rows}}
    with target.client() as client:
        check_queues(client, parse(target.options()))
        is_whole = plan.server and plan.where is None and plan.body is None
        done = _by_server(client, target.queue, plan) if is_whole else None
        return _by_spark(spark, client, target, plan) if done is None else done


def _by_server(client: Client, queue: str, plan: Redrive) -> Summary | None:
    """Redrive by a job of the server and wait for its end; None if the server has no such jobs.

    If the wait is interrupted, the job is cancelled: moved messages stay moved, others stay.

    Raises:
        Conflict: a redrive of this queue is under way.
        RuntimeError: the job failed.
    """
    rate = plan.rate and max(1, int(plan.rate))
    try:
        job = client.start_redrive(queue, filter={}, to=plan.to, ttl=plan.ttl, max_per_second=rate)
    except Refused as error:
        if error.status in NO_SUCH_ROUTE:
            return None
        raise
    job = client.wait_for_job(job)
    if job.state == "failed":
        raise RuntimeError(f"the server's job {job.id} failed: {job.error}")
    refused = sum(job.refused.values())
    return {
        "moved": job.done,
        "left": job.total - job.done - refused,
        "rejected": refused,
        "lost": 0,
        "retries": 0,
        "job": job.id,
        "refused": [{"reason": reason, "letters": count} for reason, count in job.refused.items()],
    }


def _by_spark(spark: SparkSession, client: Client, target: Target, plan: Redrive) -> Summary:
    """Claim batches, and post and delete what the plan chooses of each."""
    summary: Summary = {"moved": 0, "left": 0, "rejected": 0, "lost": 0, "retries": 0}
    summary["refused"] = []
    options = parse(target.options() | {"claimTtl": str(_CLAIM_TTL)})
    renewal = Renewal(options)
    # Letters that stay are held until the end, so that they are not claimed again.
    claimed: list[str] = []
    try:
        while held := claim_messages(client, options, plan.batch):
            claimed += [one.id for one in held]
            renewal.add(0, claimed)
            moved = _post(target, plan, held, summary, spark)
            mine = [(one.id, [m.id for m in one.messages if m.id in moved]) for one in held]
            # If a claim lapsed, its letters may be in both queues.
            lost = sum(delete_claimed(client, options, mine))
            summary["moved"] += len(moved) - lost
            summary["lost"] += lost
            over = {one.id for one in held if all(m.id in moved for m in one.messages)}
            claimed = [claim_id for claim_id in claimed if claim_id not in over]
            renewal.add(0, claimed)
    finally:
        renewal.stop()
        release_claims(client, target.queue, claimed)
    return summary


def _post(
    target: Target, plan: Redrive, held: Sequence[Held], summary: Summary, spark: SparkSession
) -> set[str]:
    """Post the chosen letters of a batch; return the ids of those that are in the target."""
    rows = pa.Table.from_batches([to_batch(one.messages, (*COLUMNS, "group")) for one in held])
    chosen = _chosen(spark.createDataFrame(rows).repartition(2), plan).cache()
    try:
        ids = {row["id"] for row in chosen.select("id").collect()}
        summary["left"] += rows.num_rows - len(ids)
        if not ids:
            return ids
        given = {"ttl": plan.ttl, "rate": plan.rate, "onInvalidRow": "skip"}
        done = target.write(chosen.drop("id"), told=plan.batch, **given)
    finally:
        chosen.unpersist()
    prefix = f"{plan.run_id}-"
    refused = [
        {"id": one["key"].removeprefix(prefix), "reason": one["reason"]} for one in done["refused"]
    ]
    summary["retries"] += done["retries"]
    summary["rejected"] += len(refused)
    summary["refused"] += refused[: _SHOWN - len(summary["refused"])]
    return ids - {one["id"] for one in refused}


def _chosen(letters: DataFrame, plan: Redrive) -> DataFrame:
    rows = letters.where(plan.where) if plan.where else letters
    goal: Any = col("dlq_source_queue") if plan.to is None else lit(plan.to)
    return rows.where(goal.isNotNull()).select(
        goal.alias("queue"),
        expr(plan.body or "body").alias("body"),
        "headers",
        "group",
        concat(lit(f"{plan.run_id}-"), col("id")).alias("idempotency_key"),
        "id",
    )
