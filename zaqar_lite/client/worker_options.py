"""How a worker works, and what it has done."""

import dataclasses
import inspect
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from zaqar_lite.client.arguments import check_fields
from zaqar_lite.client.ledger import ClaimOptions
from zaqar_lite.client.models import Message
from zaqar_lite.client.verdicts import Reject, Retry

if TYPE_CHECKING:
    from zaqar_lite.client.tracing import Tracing

Handler = Callable[[Message], Any]
Middleware = Callable[[Message, Handler], Any]


@dataclasses.dataclass(slots=True)
class WorkerStats:
    """What a worker did: messages processed, handlers that raised, claims lost on the way."""

    processed: int = 0
    failed: int = 0
    lost: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How to work.

    Attributes:
        concurrency: messages handled at a time, each in a thread or a task of its own.
        batch: messages per claim; they are handled one after the other, so keep it small where
            handling is slow.
        ttl: seconds that a claim lasts without renewal: how long a killed worker's messages wait.
        grace: seconds that a message outlives its claim.
        poll: seconds, about, between two looks at an empty queue where the server does not wait
            (OpenStack's Zaqar), for all slots together; and after a claim that failed.
        longest_pause: seconds; after each failure in a row a slot pauses for a random time that
            doubles up to this, so that a dependency that is down does not use up the attempts of
            every message. `Reject`, and a `Retry` that says when, are followed by no pause.
        details: whether messages carry claim counts, times, headers, attempts and dead-letter
            sources.
        must_exist: whether to refuse to work on a queue that nobody has made, instead of waiting
            for its first message: the name may be mistyped.
        report_errors: whether the text of what a handler raised is stored with the message, as the
            detail of its attempt; it may quote the message, or a secret.
        time_limit: seconds that a handler may take for a message. Then it is interrupted by
            `TimeLimitExceeded` (an async one is cancelled), which counts as a failure. A handler
            that waits inside of a library is interrupted when that returns; until then its claim
            is not renewed, so that its messages come again after `ttl`.
        on_failure: is told about each handler that raised, instead of a traceback in the log.
        decoder: makes of each body what the handler gets as `message.body`; a body that it refuses
            is a failure of the message, with the exception's type as the reason.
        middleware: functions `(message, call_next)` around the handler, the outermost first; each
            returns what `call_next(message)` returned (awaits it, around an async handler).
    """

    concurrency: int = 1
    batch: int = 10
    ttl: int = 300
    grace: int = 60
    poll: float = 1.0
    longest_pause: float = 30.0
    details: bool = False
    must_exist: bool = False
    report_errors: bool = False
    time_limit: float | None = None
    on_failure: Callable[[Message, Exception], None] | None = None
    decoder: Callable[[Any], Any] | None = None
    middleware: Sequence[Middleware] = ()

    def __post_init__(self) -> None:
        """Refuse numbers with which nothing would be done.

        Raises:
            TypeError, ValueError: the text names the option.
        """
        check_fields(self)
        for name in ("concurrency", "batch"):
            if getattr(self, name) < 1:
                message = f"{name} must be at least 1"
                raise ValueError(message)
        if self.time_limit is not None and self.time_limit <= 0:
            message = "time_limit must be above 0"
            raise ValueError(message)

    def wrapped(self, handler: Handler, tracing: "Tracing | None" = None) -> Handler:
        """Return the handler inside of the span, the decoder and the middleware."""
        is_async = inspect.iscoroutinefunction(handler)
        for layer in reversed(self.middleware):
            handler = partial(_through, layer, handler)
        decoder = self.decoder
        decoded = handler if decoder is None else partial(_decoded, decoder, handler)
        return decoded if tracing is None else tracing.around(decoded, is_async=is_async)

    def claim_options(self, wait: float) -> ClaimOptions:
        """Return how a slot claims; it waits for so many seconds."""
        return ClaimOptions(
            limit=self.batch,
            ttl=self.ttl,
            grace=self.grace,
            details=self.details,
            wait=wait,
            poll=self.poll,
        )

    def pause(self, error: Exception, failures: int) -> float:
        """Return the seconds to wait after so many failures in a row.

        Where the handler said what becomes of the message there is nothing to wait for.
        """
        if isinstance(error, Reject) or (isinstance(error, Retry) and error.after):
            return 0
        longest: float = min(self.longest_pause, 0.5 * 2 ** min(failures, 16))
        return random.uniform(0, longest)  # noqa: S311 - jitter, not a secret


def _decoded(decoder: Callable[[Any], Any], handler: Handler, message: Message) -> Any:  # noqa: ANN401
    return handler(message.decoded(decoder))


def _through(layer: Middleware, handler: Handler, message: Message) -> Any:  # noqa: ANN401
    return layer(message, handler)
