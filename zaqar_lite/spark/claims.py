"""Claim many messages, renew the claims from a thread, and delete or release what they hold."""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from zaqar_lite.client import ClaimLost, Client, Held, MessageClaimed, ZaqarError
from zaqar_lite.spark.ledger import Claims
from zaqar_lite.spark.options import Options

logger = logging.getLogger(__name__)
_ROUND = 64


@dataclass
class Deleted:
    """The result of deleting claims.

    Attributes:
        lapsed: claims that had ended before.
        lost: messages that another consumer holds by now; they were left alone.
    """

    lapsed: int = 0
    lost: int = 0


def claim_messages(client: Client, options: Options, most: int, *, wait: float = 0) -> list[Held]:
    """Claim up to `most` messages, as many as there are; in the order of their first messages.

    Where there are none, wait up to `wait` seconds for the first; one request does that, and the
    others begin when it has some. Claims that were made before an error are given back.
    """
    ended = threading.Event()

    claims: list[Held] = []

    def one(limit: int, wait: float = 0) -> int:
        if ended.is_set():
            return 0
        held = client.create_claim(
            options.queue,
            limit=limit,
            ttl=options.claim_ttl,
            grace=options.claim_grace,
            details=True,
            raw=True,
            wait=wait,
        )
        if held is None:
            ended.set()
            return 0
        claims.append(held)
        return len(held.messages)

    try:
        left = most
        if wait and most > 0:
            left -= one(min(client.page_size, most), wait)
        with ThreadPoolExecutor(options.concurrency, "zaqar-claim") as threads:
            while left > 0 and not ended.is_set():
                firsts = range(0, left, client.page_size)[:_ROUND]
                limits = [min(client.page_size, left - first) for first in firsts]
                left -= sum(threads.map(one, limits))
    except BaseException:
        release_claims(client, options.queue, [held.id for held in claims])
        raise
    return sorted(claims, key=lambda held: held.messages[0].id)


def release_claims(client: Client, queue: str, claim_ids: Sequence[str]) -> None:
    """Release claims; one that can't be released is logged, and lapses by itself."""
    for claim_id in claim_ids:
        try:
            client.release_claim(queue, claim_id)
        except ZaqarError as error:
            logger.warning("a claim on %r was not given back, and will lapse: %s", queue, error)


def delete_claimed(
    client: Client, options: Options, claims: Sequence[tuple[str, Sequence[str]]]
) -> Deleted:
    """Delete messages that were processed, by the claims (id, message ids) that hold them.

    If a claim has lapsed, those of its messages are deleted that nobody holds now; one that another
    consumer holds is left to that consumer.
    """

    def one(given: tuple[str, Sequence[str]]) -> Deleted:
        claim_id, ids = given
        try:
            client.delete_messages(options.queue, ids, claim_ids=[claim_id])
        except ClaimLost:
            return Deleted(1, sum(not _delete_one(client, options, claim_id, one) for one in ids))
        return Deleted()

    with ThreadPoolExecutor(options.concurrency, "zaqar-delete") as threads:
        done = list(threads.map(one, [given for given in claims if given[1]]))
    return Deleted(sum(one.lapsed for one in done), sum(one.lost for one in done))


def _delete_one(client: Client, options: Options, claim_id: str, message_id: str) -> bool:
    """Delete a processed message with its claim, or if nobody holds it; say if it is deleted."""
    try:
        client.delete_message(options.queue, message_id, claim_id=claim_id)
    except ClaimLost:
        try:
            client.cancel(options.queue, message_id)
        except MessageClaimed:
            return False
    return True


class Renewal:
    """Keep claims alive from `add` to `remove`: renew them every `claimRenewal` seconds.

    Pickled without its thread: an object without a batch has none.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._claims: dict[int, tuple[str, ...]] = {}
        self._ended: threading.Event | None = None

    def add(self, number: int, claims: Claims) -> None:
        """Renew a batch's claims from now on."""
        self._claims[number] = tuple(claim_id for claim_id, _ in claims)
        if self._ended is None:
            self._ended = threading.Event()
            threading.Thread(
                target=self._run, args=(self._ended,), name="zaqar-renewal", daemon=True
            ).start()

    def remove(self, number: int) -> None:
        """Stop renewing a batch's claims."""
        self._claims.pop(number, None)
        if not self._claims:
            self.stop()

    def stop(self) -> None:
        """Stop the thread."""
        self._claims.clear()
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def _run(self, ended: threading.Event) -> None:
        with self._options.client() as client:
            over: set[str] = set()
            while not ended.wait(self._options.renewal_interval):
                held = [one for claims in list(self._claims.values()) for one in claims]
                over.intersection_update(held)
                for claim_id in held:
                    # A claim that ended, with its last message or by time, never comes back.
                    if claim_id not in over and not renew_claim(client, self._options, claim_id):
                        over.add(claim_id)


def renew_claim(client: Client, options: Options, claim_id: str) -> bool:
    """Renew one claim; return whether it is held. Errors are logged, and the next round retries."""
    try:
        client.renew_claim(
            options.queue, claim_id, ttl=options.claim_ttl, grace=options.claim_grace
        )
    except ClaimLost:
        return False
    except ZaqarError as error:
        logger.warning("a claim was not renewed: %s", error)
    return True
