"""Check the messages of a post, and turn them into messages for the store."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zaqar_lite.domain.clock import Clock, read_instant
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import MAX_IDEMPOTENCY_KEY, MIN_MESSAGE_TTL, Limits
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.posts import IdempotencyKey, NewMessage, identify
from zaqar_lite.service.policy import Policy
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
    """Check posted messages, and fill in the defaults of their queue."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock

    def resolve(
        self, queue: QueueRef, first: int, drafts: Sequence[Draft], policy: Policy
    ) -> list[NewMessage]:
        """Make messages for the store of a part of a post, which begins with message `first`.

        Raises:
            Invalid: a delay is out of range, or a message would expire before it is delivered.
        """
        default_ttl_ms, default_delay_ms = policy.default_ttl_ms, policy.default_delay_ms
        if not policy.is_delayed:
            return [
                NewMessage(
                    bytes(draft.body),
                    default_ttl_ms if draft.ttl is None else draft.ttl * 1000,
                    0,
                    None if draft.idempotency_key is None else _key(queue, draft),
                    draft.headers,
                )
                for draft in drafts
            ]
        for index, draft in enumerate(drafts, first):
            if draft.delay is not None:
                self.check_times(f"Message {index}", None, draft.delay)
        new = [
            NewMessage(
                bytes(draft.body),
                default_ttl_ms if draft.ttl is None else draft.ttl * 1000,
                default_delay_ms if draft.delay is None else draft.delay * 1000,
                _key(queue, draft),
                draft.headers,
            )
            for draft in drafts
        ]
        for place, draft in enumerate(drafts):
            if draft.deliver_at is not None:
                new[place] = self._timed(first + place, draft.deliver_at, new[place], policy)
        if policy.ttl_after_delay:
            new = [replace(one, ttl_ms=one.ttl_ms + one.delay_ms) for one in new]
        return new

    def _timed(self, index: int, deliver_at: str, new: NewMessage, policy: Policy) -> NewMessage:
        """Give a message the delay until its instant; 0 if that has passed."""
        delay_ms = max(0, read_instant(deliver_at) - self._clock.now_ms())
        self.check_times(f"Message {index}: deliver_at", None, -(-delay_ms // 1000))
        if new.ttl_ms <= delay_ms and not policy.ttl_after_delay:
            raise Invalid(
                f"Message {index} would expire before it is delivered: give it a longer ttl, or "
                "the queue _ttl_after_delay."
            )
        return replace(new, delay_ms=delay_ms)

    def check_post(self, drafts: Sequence[Draft], batch_key: str | None) -> None:
        """Check a post as a whole.

        Raises:
            Invalid: it has no messages, or too many, or a wrong key.
        """
        if not drafts:
            raise Invalid("No messages to post.")
        most = self._limits.max_messages_per_post
        if len(drafts) > most:
            # The store takes them in one step, whose time grows with their number.
            raise Invalid(
                f"The post has {len(drafts)} messages; {most} are allowed: post them in parts."
            )
        if batch_key is not None:
            _check_key("The Idempotency-Key header", batch_key)

    def check(self, first: int, drafts: Sequence[Draft]) -> tuple[bool, bool]:
        """Check a part of a post, from message `first` on.

        Tells if one has a `deliver_at`, and if one has a delay.

        Raises:
            Invalid: a message breaks a rule; names it by its index.
        """
        timed = delayed = False
        ttls = range(MIN_MESSAGE_TTL, self._limits.max_message_ttl + 1)
        for index, draft in enumerate(drafts, first):
            if draft.ttl is not None and draft.ttl not in ttls:
                self.check_times(f"Message {index}", draft.ttl, None)
            if draft.idempotency_key is not None:
                _check_key(f"Message {index}: the idempotency_key", draft.idempotency_key)
            if draft.headers is not None:
                self._check_headers(index, draft.headers)
            if draft.delay:
                delayed = True
            if draft.deliver_at is not None:
                timed = True
                if draft.delay is not None:
                    raise Invalid(f"Message {index} has a delay and a deliver_at: give one.")
                _check_instant(index, draft.deliver_at)
        return timed, delayed

    def check_times(self, what: str, ttl: int | None, delay: int | None) -> None:
        """Check times of `what`, in seconds.

        Raises:
            Invalid: one is out of range.
        """
        if ttl is not None and not MIN_MESSAGE_TTL <= ttl <= self._limits.max_message_ttl:
            raise Invalid(
                f"{what}: the ttl must be between {MIN_MESSAGE_TTL} and "
                f"{self._limits.max_message_ttl} seconds; it is {ttl}."
            )
        if delay is not None and not 0 <= delay <= self._limits.max_message_delay:
            raise Invalid(
                f"{what}: the delay must be between 0 and {self._limits.max_message_delay} "
                f"seconds; it is {delay}."
            )

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


def _check_instant(index: int, text: str) -> None:
    try:
        read_instant(text)
    except Invalid as error:
        raise Invalid(f"Message {index}: deliver_at: {error}") from error


def _check_key(what: str, key: str) -> None:
    if not 1 <= len(key.encode()) <= MAX_IDEMPOTENCY_KEY:
        raise Invalid(f"{what} must have 1 to {MAX_IDEMPOTENCY_KEY} bytes (UTF-8).")


def _key(queue: QueueRef, draft: Draft) -> IdempotencyKey | None:
    key = draft.idempotency_key
    return None if key is None else identify(queue, key, (draft.body,))


async def is_repeated(
    messages: MessageStore, queue: QueueRef, drafts: Sequence[Draft], batch_key: str | None
) -> bool:
    """Whether a post would store nothing new: its key is known, or those of all its messages."""
    keys = {draft.idempotency_key for draft in drafts}
    known = await messages.find_idempotency_keys(
        queue, [key for key in keys if key is not None], batch_key
    )
    return known.batch is not None or keys <= known.messages.keys()
