"""`zaqar-lite dlq`: look at dead letters and move them back."""

import argparse
from typing import Any

from zaqar_lite.commands import jobs, sdk
from zaqar_lite.commands.argument_types import duration, flag, number, repeated
from zaqar_lite.commands.base_command import FAILED, Leaves, Verbs
from zaqar_lite.commands.message import add_show
from zaqar_lite.commands.output import Output, as_row


def add_commands(subparsers: Leaves) -> None:
    """Declare the noun and its verbs."""
    verbs = Verbs.of(subparsers, "dlq", "look at dead letters and move them back")
    parser = verbs.list(
        "list",
        "list_dead_letters",
        "list the letters of a dead-letter queue, with the queue they came from",
        "queue",
        columns=("id", "source", "moved_at", "reason", "claim_count", "body"),
        empty=lambda given: f"No dead letters{_of(given.source)} in {given.queue}",
    )
    parser.add_argument("--source", help="only letters of this queue")
    number(parser, "--limit", "letters at most")
    add_show(verbs, "show dead letters by id: why they are there")
    verbs.list(
        "count",
        "count_dead_letters",
        "count the letters of a dead-letter queue by the queue they came from",
        "queue",
        columns=("queue", "letters", "claims", "oldest", "newest"),
        empty="No dead letters in {queue}",
    )
    text = "move the letters of a dead-letter queue back; may be killed and rerun"
    parser = verbs.leaf("redrive", redrive, text, "queue")
    parser.add_argument("--to", metavar="QUEUE", help="the target; else each letter's own source")
    parser.add_argument("--source", help="only letters of this queue")
    text = (
        "only letters whose body has this; a.b reaches inside, VALUE is JSON or a string. Or "
        "the server's filter language, such as \"reason = 'http_503'\", which starts a job"
    )
    repeated(parser, "--where", "KEY=VALUE", text)
    number(parser, "--limit", "letters at most", least=0)
    duration(parser, "--ttl", "how long they live in the target, such as 1h")
    duration(parser, "--delay", "how long until they can be claimed there")
    flag(parser, "--dry-run", "only count")
    text = "also letters that were redriven as often as the queue allows; starts a job"
    flag(parser, "--force", text)
    jobs.add_options(parser)


def redrive(client: "sdk.Client", arguments: argparse.Namespace, output: Output) -> int | None:
    """Move dead letters back and wait for that, or follow a job where an option asks for one."""
    where = jobs.wants(arguments.where)
    jobs.check_queue(client, arguments.queue)
    names = ("to", "limit", "dry_run", "ttl", "delay")
    given: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    is_job = "where" in where or arguments.rate or arguments.watch or arguments.force
    if is_job:
        chosen = where if arguments.source is None else {**where, "source": arguments.source}
        given |= {"filter": chosen, "max_per_second": arguments.rate, "force": arguments.force}
        job = client.start_redrive(arguments.queue, **given)
        return jobs.follow(client, job, output, watch=arguments.watch, dry_run=arguments.dry_run)
    result = client.redrive(arguments.queue, source=arguments.source, where=where or None, **given)
    row = as_row(result)
    if output.as_json:
        output.record(row)
    elif not any(row.values()):
        output.say(f"No dead letters{_of(arguments.source)} in {arguments.queue} to move.")
    else:
        output.record({key: value for key, value in row.items() if value})
    if result.without_source:
        text = "were not moved here from another queue: --to QUEUE says where they go"
        output.say(f"{result.without_source} of the messages {text}")
    if result.held:
        output.say(f"{result.held} letters are claimed by somebody: run again for them")
    if result.lost:
        output.say(f"{result.lost} letters are in both queues: run again within ten minutes")
    for reason, count in result.stayed.items():
        output.say(f"{count} letters stayed: {reason}")
    stays = result.without_source or result.refused or result.lost or result.stayed
    return FAILED if stays else None


def _of(source: str | None) -> str:
    return "" if source is None else f" of {source}"
