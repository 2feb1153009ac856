"""Renew the claims of the batches under way, from a thread of the driver."""

import logging
import threading

from zaqar_lite.client import ClaimLost, Client, ZaqarError
from zaqar_lite.spark.ledger import Claims
from zaqar_lite.spark.options import Options

logger = logging.getLogger(__name__)


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
            while not ended.wait(self._options.claim_renewal):
                held = [one for claims in list(self._claims.values()) for one in claims]
                over.intersection_update(held)
                for claim_id in held:
                    # A claim that ended, with its last message or by time, never comes back.
                    if claim_id not in over and not renew(client, self._options, claim_id):
                        over.add(claim_id)


def renew(client: Client, options: Options, claim_id: str) -> bool:
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
