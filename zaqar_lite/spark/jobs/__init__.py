"""Jobs as plain functions: each takes a session and what to do, and returns a summary."""

from zaqar_lite.spark.jobs.archive import archive, backfill
from zaqar_lite.spark.jobs.dlq_report import dlq_report
from zaqar_lite.spark.jobs.publish import generate, publish
from zaqar_lite.spark.jobs.redrive import redrive
from zaqar_lite.spark.jobs.stats import stats

__all__ = ["archive", "backfill", "dlq_report", "generate", "publish", "redrive", "stats"]
