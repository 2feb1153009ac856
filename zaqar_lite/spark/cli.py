"""The command `zaqar-lite-spark`: the jobs, each with one JSON summary on standard output.

Exit codes: 0 done; 1 failed; 2 wrong usage; 3 done, but some rows were refused or letters lost;
130 interrupted. spark-submit works too: `spark-submit --master ... path/to/cli.py publish ...`.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from zaqar_lite.client import ZaqarError
from zaqar_lite.client.base_client import DEFAULT_URL
from zaqar_lite.commands.argument_types import pair
from zaqar_lite.environment import client_value
from zaqar_lite.spark import jobs, register
from zaqar_lite.spark.jobs.publish import FORMATS, Publication
from zaqar_lite.spark.jobs.redrive import Redrive
from zaqar_lite.spark.jobs.target import Summary, Target
from zaqar_lite.spark.options import OptionError
from zaqar_lite.spark.session import remote_session, session

Job = Callable[..., Summary]
_ACCESS = {
    "keyFile": ("--key-file", "a file with an access key; without, ZAQAR_LITE_KEY"),
    "signedFile": ("--signed-file", "a permission that `zaqar-lite share` has printed"),
    "cloud": ("--cloud", "log in to Keystone as clouds.yaml says"),
    "caFile": ("--ca-file", "the certificates to trust"),
    "retryTimeout": ("--retry-timeout", "seconds to try while there is no answer; 10"),
}
_COMMON = {
    "job", "run", "queue", "endpoint", "project", "page_size", "master", "remote", "conf",
    "progress", *_ACCESS,
}  # fmt: skip
"""Arguments that every job has; the others are those of its function, by the same names."""
DONE, FAILED, USAGE, INCOMPLETE, INTERRUPTED = 0, 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job and answer its exit code."""
    arguments = parser().parse_args(argv)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a job cleans up
    access = {name: value for name in _ACCESS if (value := getattr(arguments, name)) is not None}
    where = (arguments.endpoint, arguments.queue, arguments.project, arguments.page_size)
    target = Target(*where, access)
    started = time.monotonic()
    try:
        spark = _session(arguments)
        summary = arguments.run(spark, target, **_own_arguments(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (PySparkException, ZaqarError, OSError, ValueError, RuntimeError) as error:
        _print({"job": arguments.job, "error": _last_line(error)})
        return USAGE if _is_usage(error) else FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
    seconds = round(time.monotonic() - started, 3)
    _print({"job": arguments.job, "queue": target.queue, "seconds": seconds, **summary})
    return INCOMPLETE if summary.get("rejected") or summary.get("lost") else DONE


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    text = "Publish, archive and inspect queues with Spark."
    made = argparse.ArgumentParser(prog="zaqar-lite-spark", description=text)
    subparsers = made.add_subparsers(dest="job", metavar="JOB", required=True)
    job = _planned(jobs.publish, Publication)
    publish = _add(subparsers, "publish", "publish files as messages", job)
    publish.add_argument("path", help="file or directory")
    publish.add_argument("--format", choices=FORMATS, default="parquet")
    publish.add_argument("--body", default="to_json(struct(*))", metavar="SQL")
    for name in ("ttl", "delay", "key", "idempotency-key", "group", "where"):
        publish.add_argument(f"--{name}", metavar="SQL")
    publish.add_argument("--run-id", help="a repetition with the same id posts nothing twice")
    publish.add_argument("--rejects", metavar="DIR", help="write refused rows here and go on")
    text = "in a normal queue"
    publish.add_argument("--on-ignored-delay", choices=("fail", "warn"), default="fail", help=text)
    publish.add_argument("--partitions", type=int, default=4)

    archive = _add(subparsers, "archive", "archive a queue as Parquet", jobs.archive)
    archive.add_argument("path", help="where the files go, of this queue alone")
    archive.add_argument("--state", required=True, help="a directory that remembers the progress")
    archive.add_argument("--remove", action="store_true", help="delete what is archived")
    archive.add_argument("--batch", type=int, default=10_000)

    report = _add(subparsers, "dlq-report", "find patterns in a dead-letter queue", jobs.dlq_report)
    report.add_argument("output", help="a directory for the tables and report.html")
    report.add_argument("--samples", choices=("none", "keys", "full"), default="keys")
    report.add_argument("--letters", metavar="PATH", help="read an archive, not the queue")

    redrive = _add(subparsers, "redrive", "move dead letters back", _planned(jobs.redrive, Redrive))
    redrive.add_argument("--to", help="the target; by default each letter's source")
    redrive.add_argument("--where", metavar="SQL", help="which letters")
    redrive.add_argument("--body", metavar="SQL", help="the new body, JSON text")
    redrive.add_argument("--run-id", default="redrive")
    text = "let Spark move every letter"
    redrive.add_argument("--no-server-job", dest="server", action="store_false", help=text)
    redrive.add_argument("--batch", type=int, default=10_000)
    redrive.add_argument("--ttl", type=int, help="seconds to live in the target")

    backfill = _add(subparsers, "backfill", "fill a queue from an archive", jobs.backfill)
    backfill.add_argument("path", help="the archive")
    backfill.add_argument("--where", metavar="SQL")
    backfill.add_argument("--ttl", type=int, help="seconds to live anew, expired ones too")
    for added in (publish, redrive, backfill):
        added.add_argument("--rate", type=float, help="messages a second")

    stats = _add(subparsers, "stats", "count a queue by the hour", jobs.stats)
    stats.add_argument("--archive", metavar="PATH", help="read an archive, not the queue")
    stats.add_argument("--output", metavar="PATH", help="write the rollup here as Parquet")

    generate = _add(subparsers, "generate", "post synthetic messages", jobs.generate)
    generate.add_argument("count", type=int)
    generate.add_argument("--bytes", dest="body_bytes", metavar="BYTES", type=int, default=200)
    generate.add_argument("--delay", type=int, default=0, help="spread over so many seconds")
    return made


def _own_arguments(given: argparse.Namespace) -> dict[str, Any]:
    own = {name: value for name, value in vars(given).items() if name not in _COMMON}
    if given.run is jobs.archive and given.progress:
        own["on_progress"] = _show_rows
    return own


def _add(subparsers: Any, name: str, text: str, job: Job) -> argparse.ArgumentParser:  # noqa: ANN401
    added: argparse.ArgumentParser = subparsers.add_parser(name, help=text, description=text)
    added.set_defaults(run=job)
    added.add_argument("--queue", required=True)
    text = f"the server (ZAQAR_LITE_URL, else {DEFAULT_URL})"
    endpoint = client_value("URL") or DEFAULT_URL
    added.add_argument("--endpoint", default=endpoint, metavar="URL", help=text)
    added.add_argument("--project", help="ZAQAR_LITE_PROJECT, else the credential's, or default")
    for option, (flag, words) in _ACCESS.items():
        added.add_argument(flag, dest=option, help=words)
    added.add_argument("--page-size", type=int, help="at most what the server allows; 200, if so")
    where = added.add_mutually_exclusive_group()
    where.add_argument("--master", help="where Spark runs; by default here, on all cores")
    where.add_argument("--remote", metavar="sc://HOST", help="a server of Spark Connect")
    added.add_argument("--conf", action="append", default=[], type=pair, metavar="NAME=VALUE")
    on_terminal = sys.stderr.isatty()
    added.add_argument("--progress", action=argparse.BooleanOptionalAction, default=on_terminal)
    added.add_argument("--dry-run", action="store_true", help="change nothing, count only")
    return added


def _planned(job: Job, plan: Callable[..., object]) -> Job:
    """Return a job that takes the fields of its plan."""
    return lambda spark, target, *, dry_run, **fields: job(
        spark, target, plan(**fields), dry_run=dry_run
    )


def _show_rows(rows: int) -> None:
    sys.stderr.write(f"\r{rows:,} rows")
    sys.stderr.flush()


def _session(given: argparse.Namespace) -> SparkSession:
    settings = dict(given.conf)
    if given.remote:  # without Spark's progress bar: the server's tasks are not this process's
        made = remote_session(given.remote, **settings)
    else:
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # then spark-submit says where
        settings = {"spark.ui.showConsoleProgress": str(given.progress).lower(), **settings}
        made = session(given.master or (None if submitted else "local[*,3]"), **settings)
        made.sparkContext.setLogLevel("ERROR")
    register(made)
    return made


def _is_usage(error: Exception) -> bool:
    """Whether an error is wrong usage (an option, SQL, a path) and not a failure of the job."""
    if isinstance(error, PySparkException) and "options.OptionError: " in str(error):
        return True
    if isinstance(error, AnalysisException):
        return error.getCondition() not in {None, "PYTHON_DATA_SOURCE_ERROR"}
    return isinstance(error, OptionError)


def _last_line(error: Exception) -> str:
    """The line of an error that says what was wrong; Spark puts two traces around it."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line.startswith("zaqar_lite.")]
    return told[-1].split(": ", 1)[-1] if told else next(filter(None, lines), repr(error))


def _print(document: Summary) -> None:
    sys.stdout.write(json.dumps(document, default=str) + "\n")


if __name__ == "__main__":
    sys.exit(main())
