"""Jobs of the server on the command line: begin one, and follow it to its end."""

import argparse
import time
from typing import Any

from zaqar_lite.commands import sdk
from zaqar_lite.commands.argument_types import UsageError, flag, json_or_text, number
from zaqar_lite.commands.base_command import FAILED, NOT_FOUND, explain, is_absent
from zaqar_lite.commands.output import Output, as_row

_LOOK_EVERY = 0.5
_ALWAYS = frozenset({"selected", "done", "refused", "path"})
"""Fields that are printed also where they are 0 or empty."""
_REFUSALS = {
    "claimed": "a claim holds them",
    "due_changed": "they are due at another time than was thought",
    "gone": "there are no such messages (any more)",
    "no_source": "they were not moved here from another queue (--to QUEUE says where they go)",
    "not_delayed": "they are not delayed (any more)",
    "max_redrives": "they were redriven as often as the queue allows (--force)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a job."""
    number(parser, "--rate", "messages a second at most")
    flag(parser, "--watch", "show the job's progress until it ends")


def is_language(words: list[str]) -> bool:
    """Whether `--where` is in the server's filter language, and not KEY=VALUE."""
    return any("=" not in word or " " in word.partition("=")[0] for word in words)


def wants(words: list[str]) -> dict[str, Any]:
    """Return the filter that `--where` means: the server's language, or one KEY=VALUE.

    Raises:
        UsageError: more than one.
    """
    if not words:
        return {}
    if len(words) > 1:
        raise UsageError("one --where is possible; the filter language combines conditions by AND")
    if is_language(words):
        return {"where": words[0]}
    path, _, text = words[0].partition("=")
    return {"body": {"path": path, "equals": json_or_text(text)}}


def check_queue(client: "sdk.Client", queue: str) -> None:
    """Refuse a queue that nobody has made: a job would find nothing there, and be called done.

    Its first letter makes a dead-letter queue. Until then it is enough that a queue names it.

    Raises:
        NotFound: there is no such queue.
    """
    if is_absent(client, queue):
        named = (one.metadata or {} for one in client.list_queues(detailed=True))
        if all(metadata.get("_dead_letter_queue") != queue for metadata in named):
            raise sdk.NotFound("No such queue", queue)


def follow(
    client: "sdk.Client", job: "sdk.Job", output: Output, *, watch: bool, dry_run: bool = False
) -> int | None:
    """Print a job: now, or at its end with `watch` or if it only counts."""
    while job.path and not job.is_over and (watch or dry_run):
        if watch:
            left = "" if job.remaining is None else f", about {job.remaining} s left"
            output.say(f"{job.done} done of {job.selected} ({job.examined} of {job.total}{left})")
        time.sleep(_LOOK_EVERY)
        job = client.get_job(job.path)
    output.record({name: value for name, value in as_row(job).items() if value or name in _ALWAYS})
    for reason, count in job.refused.items():
        output.say(f"{count} refused: {_REFUSALS.get(reason, reason)}")
    if not job.is_over:
        output.say(f"It goes on in the server: {job.path}")
    if job.state != "failed" and set(job.refused) == {"gone"} and not job.done:
        return explain(UsageError("Not found: none of these messages exist"), NOT_FOUND)
    return FAILED if job.refused or job.state == "failed" else None
