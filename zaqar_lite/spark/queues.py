"""Which queues are read: those that the options name, or those whose names match a pattern."""

import re
from fnmatch import fnmatchcase
from itertools import islice

from zaqar_lite.client import Client, Forbidden, NotFound
from zaqar_lite.spark.options import OptionError, Options

MOST_QUEUES = 1_000
"""How many queues a pattern may match: each costs a request a batch."""


def named(options: Options) -> None:
    """Make sure that the options name something to read.

    Raises:
        OptionError: they name no queue.
    """
    if not options.queues and not options.queue_pattern:
        raise OptionError(
            "Name what to read: the option 'queue', 'queues' with commas, or 'queuePattern'."
        )


def queues_to_read(
    client: Client, options: Options, *, may_be_none: bool = False
) -> tuple[str, ...]:
    """Return the queues whose names match the pattern, or those that were named.

    `may_be_none` allows that no queue matches, whatever `failOnMissingQueue` says.

    Raises:
        OptionError: none is named; one that was named is missing, or nothing matches, and
            failOnMissingQueue is on; or more than `MOST_QUEUES` match.
    """
    named(options)
    pattern = options.queue_pattern
    if pattern is None:
        check_queues(client, options)
        return options.queues
    # The server looks for a part of a name, so it is asked for the longest part that is literal.
    part = max(re.split(r"\[[^]]*\]|[*?\[\]]", pattern), key=len)
    listed = client.list_queues(name=part or None)
    matching = (queue.name for queue in listed if fnmatchcase(queue.name, pattern))
    found = tuple(islice(matching, MOST_QUEUES + 1))
    if len(found) > MOST_QUEUES:
        raise OptionError(
            f"More than {MOST_QUEUES} queues match the option 'queuePattern' ({pattern!r}): "
            "make it narrower, or run several queries."
        )
    if not found and options.fail_on_missing_queue and not may_be_none:
        raise OptionError(
            f"No queue in {options.place} matches the option 'queuePattern' "
            f"({pattern!r}); say failOnMissingQueue=false to wait for the first."
        )
    return found


def check_queues(client: Client, options: Options) -> None:
    """Check that the named queues exist.

    Raises:
        OptionError: one is not, and failOnMissingQueue is on.
    """
    if not options.fail_on_missing_queue:
        return
    for queue in options.queues:
        try:
            exists = client.queue_exists(queue)
        except (Forbidden, NotFound):
            continue  # a client that may read a queue need not be allowed to list all of them
        if not exists:
            raise OptionError(
                f"There is no queue {queue!r} in {options.place}: check the option 'queue', or "
                "say failOnMissingQueue=false."
            )
