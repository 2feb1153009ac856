"""Check the messages of a post, and turn them into messages for the store."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from zaqar_lite.domain.clock import Clock, read_instant
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import (
    MAX_IDEMPOTENCY_KEY,
    MIN_MESSAGE_TTL,
    Limits,
    check_range,
)
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import NewMessage, identify
from zaqar_lite.domain.yielding import STEP, Slices, next_turn
from zaqar_lite.service.policy import Policy
from zaqar_lite.service.records import PREFIX, is_sealed
from zaqar_lite.storage.base import MessageStore


class Draft(Struct, frozen=True, gc=False):
    """A message as it was posted; times are seconds. None stands for what the client left out.

    The body of one that was read from a request is a part of that, and copied when it is stored.
    """

    body: bytes
    ttl: int | None = None
    delay: int | None = None
    idempotency_key: str | None = None
    headers: Mapping[str, str] | None = None
    deliver_at: str | None = None


class PostValidation:
    """Check posted messages, and fill in the defaults of their queue.

    Many messages are worked on in turns with other large posts.
    """

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock

    async def check(self, drafts: Sequence[Draft], batch_key: str | None = None) -> bool:
        """Check the messages of a post; tell if one has a delay.

        Raises:
            Invalid: there are none, or too many, or a message or the key breaks a rule; names the
                message by its index.
        """
        count, most = len(drafts), self._limits.max_messages_per_post
        if not count:
            raise Invalid("No messages to post.")
        if count > most:
            # The store takes them in one step, whose time grows with their number.
            raise Invalid(f"The post has {count} messages; {most} are allowed: post them in parts.")
        if batch_key is not None:
            _check_key("The Idempotency-Key header", batch_key)
        delayed = False
        longest = self._limits.max_message_ttl
        slices = Slices() if count > STEP else None
        for index, draft in enumerate(drafts):
            if slices is not None and index % STEP == 0:
                await slices.next_turn()
            if draft.ttl is not None and not MIN_MESSAGE_TTL <= draft.ttl <= longest:
                self.check_times(f"Message {index}", draft.ttl, None)
            if draft.idempotency_key is not None:
                _check_key(f"Message {index}: the idempotency_key", draft.idempotency_key)
            if draft.headers is not None:
                self._check_headers(index, draft.headers)
            if draft.delay:
                delayed = True
            if draft.deliver_at is not None:
                if draft.delay is not None:
                    raise Invalid(f"Message {index} has a delay and a deliver_at: give one.")
                _check_instant(index, draft.deliver_at)
        return delayed

    async def resolve(
        self, queue: QueueRef, drafts: Sequence[Draft], policy: Policy
    ) -> list[NewMessage]:
        """Make messages for the store from those of a post that was checked.

        Raises:
            Invalid: a delay is out of range, a message would expire before it is delivered, has an
                instant on a queue that does not keep messages until then, or was sealed elsewhere.
        """
        default_ttl_ms, is_delayed = policy.default_ttl_ms, policy.is_delayed
        slices = Slices() if len(drafts) > STEP else None
        new: list[NewMessage] = []
        for index, draft in enumerate(drafts):
            if slices is not None:
                await slices.next_turn()
            ttl_ms = default_ttl_ms if draft.ttl is None else draft.ttl * 1000
            delay_ms = 0
            if is_delayed:
                delay_ms, ttl_ms = self._delay(index, draft, policy, ttl_ms)
            elif draft.deliver_at is not None:
                raise Invalid(
                    f"{queue.name} is a normal queue, which does not keep messages until a "
                    "'deliver_at'. A queue whose _default_message_delay is above 0 does, "
                    "or one with _honour_delays."
                )
            key = draft.idempotency_key
            own = None if key is None else identify(queue, key, (draft.body,))
            body = bytes(draft.body)
            if PREFIX in body:
                check_sealed(f"Message {index}", queue, body)
            new.append(NewMessage(body, ttl_ms, delay_ms, own, draft.headers))
        if slices is not None:
            await next_turn()
        return new

    def _delay(self, index: int, draft: Draft, policy: Policy, ttl_ms: int) -> tuple[int, int]:
        """The delay (ms) of a message on a delayed queue, and its ttl (ms) there."""
        delay_ms = policy.default_delay_ms
        if draft.delay is not None:
            self.check_times(f"Message {index}", None, draft.delay)
            delay_ms = draft.delay * 1000
        elif draft.deliver_at is not None:  # 0 if that has passed
            delay_ms = max(0, read_instant(draft.deliver_at) - self._clock.now_ms())
            self.check_times(f"Message {index}: deliver_at", None, -(-delay_ms // 1000))
            if ttl_ms <= delay_ms and not policy.ttl_after_delay:
                raise Invalid(
                    f"Message {index} would expire before it is delivered: give it a longer ttl, "
                    "or the queue _ttl_after_delay."
                )
        return delay_ms, ttl_ms + delay_ms if policy.ttl_after_delay else ttl_ms

    def check_times(self, what: str, ttl: int | None, delay: int | None) -> None:
        """Check times of `what`, in seconds.

        Raises:
            Invalid: one is out of range.
        """
        limits = self._limits
        check_range(f"{what}: the ttl", ttl, MIN_MESSAGE_TTL, limits.max_message_ttl, " seconds")
        check_range(f"{what}: the delay", delay, 0, limits.max_message_delay, " seconds")

    def _check_headers(self, index: int, headers: Mapping[str, str]) -> None:
        limits = self._limits
        if len(headers) > limits.max_message_headers:
            raise Invalid(
                f"Message {index} has {len(headers)} headers; {limits.max_message_headers} are "
                "allowed."
            )
        size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
        if size > limits.max_message_headers_size:
            raise Invalid(
                f"Message {index} has {size} bytes of headers; {limits.max_message_headers_size} "
                "are allowed."
            )


def check_sealed(what: str, queue: QueueRef, body: bytes) -> None:
    """Refuse an encrypted body, as a store has it, unless it was encrypted for this queue.

    Readers of a queue get bodies decrypted. So a client who has seen a copy of the store could post
    what it holds of other queues, or a record of the server, to a queue of its own and read it.

    Raises:
        Invalid: it was encrypted for another queue, or for a record.
    """
    if is_sealed(body) and body[len(PREFIX) :].split(b":")[1:2] != [queue.name.encode()]:
        raise Invalid(f"{what} has an encrypted body that was not posted to this queue.")


def _check_instant(index: int, text: str) -> None:
    try:
        read_instant(text)
    except Invalid as error:
        raise Invalid(f"Message {index}: deliver_at: {error}") from error


def _check_key(what: str, key: str) -> None:
    if not 1 <= len(key.encode()) <= MAX_IDEMPOTENCY_KEY:
        raise Invalid(f"{what} must have 1 to {MAX_IDEMPOTENCY_KEY} bytes (UTF-8).")


async def is_repeated(
    messages: MessageStore, queue: QueueRef, drafts: Sequence[Draft], batch_key: str | None
) -> bool:
    """Whether a post would store nothing new: its key is known, or those of all its messages."""
    keys = {draft.idempotency_key for draft in drafts}
    known = await messages.find_idempotency_keys(
        queue, [key for key in keys if key is not None], batch_key
    )
    return known.batch is not None or keys <= known.messages.keys()
