"""Say why a queue shows nothing: what it holds instead, or that there is no such queue."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zaqar_lite.client import Client


def why_empty(
    client: "Client", queue: str, text: str, *, shown: frozenset[str] = frozenset()
) -> str:
    """Return `text` with the reason behind it; messages in the states `shown` were looked at.

    A permission that is not enough to ask leaves the text as it is.
    """
    from zaqar_lite.client import ZaqarError  # noqa: PLC0415 - only once a command runs

    try:
        stats = client.stats(queue)
    except ZaqarError:
        return f"{text}."
    if not stats.total and is_absent(client, queue):
        return f"{text}: there is no queue of this name."
    hidden = [
        f"{count} {'is' if count == 1 else 'are'} {state} "
        f"(zaqar-lite message list {queue} --include-{state})"
        for state, count in (("delayed", stats.delayed), ("claimed", stats.claimed))
        if count and state not in shown
    ]
    return "; ".join([text, *hidden]) + "."


def is_absent(client: "Client", queue: str) -> bool:
    """Whether nobody has made a queue; False if that may not be asked."""
    from zaqar_lite.client import ZaqarError  # noqa: PLC0415 - only once a command runs

    try:
        return not client.queue_exists(queue)
    except ZaqarError:
        return False
