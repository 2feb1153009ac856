"""The rules of messages: post, list, get, edit, delete and pop."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Conflict, Forbidden, Invalid, NotFound
from zaqar_lite.domain.ids import is_claim_id, is_message_id, parse_marker
from zaqar_lite.domain.limits import Limits, check_range, page_limit
from zaqar_lite.domain.metadata import ENCRYPT
from zaqar_lite.domain.models import (
    ClaimRequest,
    Edit,
    ListQuery,
    Message,
    Page,
    QueueRecord,
    QueueRef,
    RefusalReason,
)
from zaqar_lite.domain.posts import NewMessage, Posted, identify
from zaqar_lite.domain.yielding import STEP, next_turn
from zaqar_lite.service.delivery.outbox import with_outbox_messages
from zaqar_lite.service.policy import Policies, Policy
from zaqar_lite.service.post_validation import Draft, PostValidation, check_sealed, is_repeated
from zaqar_lite.service.queues import Queues
from zaqar_lite.service.quotas.quota_usage import MessageQuota
from zaqar_lite.service.routing import Router
from zaqar_lite.storage.base import MessageStore

if TYPE_CHECKING:
    from zaqar_lite.service.encryption import EncryptionKeys

_IDS = "The number of ids"


class Receipt(Struct, frozen=True):
    """What a post stored, and what its client should know about it."""

    posted: Sequence[Posted]
    warning: str | None = None


@dataclass(eq=False, repr=False)
class Messages:
    """What a user may do with messages."""

    messages: MessageStore
    queues: Queues
    policies: Policies
    router: Router
    limits: Limits
    clock: Clock
    message_quota: MessageQuota | None = None
    encryption_keys: "EncryptionKeys | None" = None

    def __post_init__(self) -> None:
        self._drafts = PostValidation(self.limits, self.clock)

    async def post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        *,
        size: int,
        client_id: str,
        batch_key: str | None = None,
        lazily: bool = True,
    ) -> Receipt:
        """Store messages, and in the same step the outbox messages for their subscribers.

        If the queue has no record, one with empty metadata is made once the messages are known to
        be valid, or, unless `lazily`, the post is refused. On a normal queue every `delay` is
        ignored (delayed queues, scenario 3), with a warning unless it is 0. `size` is the size of
        the request in bytes.

        Raises:
            Invalid: a message breaks a rule; names it by its index. Nothing was stored.
            KeyReused: a key stands for another message. Nothing was stored.
            LimitReached: the queue holds too many messages or keys. Nothing was stored.
            QuotaReached: the post exceeds a quota, and does not repeat an earlier post. Nothing was
                stored.
            NotFound: there is no such queue, and none is made `lazily`.
        """
        has_delay = await self._drafts.check(drafts, batch_key)
        key = identify(queue, batch_key, (one.body for one in drafts)) if batch_key else None

        async def store(policy: Policy) -> Receipt:
            if size > policy.max_post_size:
                raise _too_large(size, policy.max_post_size)
            new: Sequence[NewMessage] = await self._drafts.resolve(queue, drafts, policy)
            if not policy.exists:
                if not lazily:
                    raise NotFound(f"Queue {queue.name} does not exist.")
                policy = await self.queues.ensure(queue)
                new = await self._drafts.resolve(queue, drafts, policy)
            filtered = await self.router.filtered_queues(queue.project)
            has_priority = policy.route.priority is not None
            if filtered or has_priority or policy.encrypted or policy.subscribed:
                new = await self._routed(queue, new, policy, filtered)
            posted = await self.messages.post(
                queue, new, client_id=client_id, batch_key=key, version=policy.version
            )
            if has_delay and not policy.is_delayed:
                return Receipt(
                    posted,
                    f"The delay was ignored: {queue.name} is a normal queue. A queue whose "
                    "_default_message_delay is above 0 honours it, or one with _honour_delays.",
                )
            return Receipt(posted)

        quota = self.message_quota
        if quota is None or not quota.quotas.bound_messages:
            return await self.policies.decide(queue, store)
        repeats = partial(is_repeated, self.messages, queue, drafts, batch_key)
        decide = partial(self.policies.decide, queue, store)
        return await quota.post(queue.project, [len(one.body) for one in drafts], decide, repeats)

    async def _routed(
        self,
        queue: QueueRef,
        resolved: Sequence[NewMessage],
        policy: Policy,
        filtered: Sequence[QueueRecord],
    ) -> Sequence[NewMessage]:
        """Give messages their priorities, copies and notes for subscribers, and seal them."""
        new = resolved
        if filtered or policy.route.priority is not None:
            new = await self.router.route(queue, new, policy.route, filtered)
            if sum(len(message.copies) for message in new) > STEP:
                await next_turn()
        secret = {one.queue for one in filtered if one.metadata.get(ENCRYPT) is True}
        if policy.encrypted or any(to.queue in secret for one in new for to in one.copies):
            new = await self._sealing().seal(queue, new)
        if policy.subscribed or new is not resolved:  # copies may have subscribers too
            now = self.clock.now_ms()
            new = await with_outbox_messages(queue, new, self.policies, policy, now)
        return new

    async def check(self, drafts: Sequence[Draft]) -> None:
        """Check messages that are posted later, as far as that does not depend on their queue.

        Raises:
            Invalid: one breaks a rule; names it by its index.
        """
        await self._drafts.check(drafts)
        for index, draft in enumerate(drafts):
            self._drafts.check_times(f"Message {index}", draft.ttl, draft.delay)

    async def list_messages(
        self,
        queue: QueueRef,
        *,
        marker: str | None,
        until: str | None,
        limit: int | None,
        exclude_client_id: str | None,
        include_claimed: bool,
        include_delayed: bool,
        details: bool = False,
        large: bool = False,
    ) -> tuple[Page, bool]:
        """List a page of messages; answer also whether delayed ones were included.

        On a queue without a delay they always are (zaqar-behaviour 3.3). A marker that can't be
        read gives an empty page.

        Raises:
            Invalid: the limit is out of range.
        """
        limit = page_limit(limit, self.limits.page(large=large))
        after, bound = parse_marker(marker), parse_marker(until)

        async def act(policy: Policy) -> tuple[Page, bool]:
            delayed = include_delayed or not policy.is_delayed
            if (marker is not None and after is None) or (until is not None and bound is None):
                return Page((), None), delayed
            page = await self.messages.list_messages(
                queue,
                ListQuery(
                    marker=after,
                    until=bound,
                    limit=limit,
                    exclude_client_id=exclude_client_id,
                    include_claimed=include_claimed,
                    include_delayed=delayed,
                    version=policy.version,
                    details=details,
                ),
            )
            return page, delayed

        return await self.policies.decide(queue, act)

    async def get(
        self, queue: QueueRef, ids: Sequence[str], *, details: bool = False, large: bool = False
    ) -> Sequence[Message]:
        """Fetch messages by id in any state; ids that are not found are left out.

        Raises:
            Invalid: too many ids.
        """
        check_range(_IDS, len(ids), 1, self.limits.page(large=large))
        known = [message_id for message_id in ids if is_message_id(message_id)]
        if not known:
            return ()
        return await self.messages.get_messages(queue, known, details=details)

    async def edit(
        self,
        queue: QueueRef,
        message_id: str,
        *,
        body: bytes | None,
        ttl: int | None,
        delay: int | None,
        size: int,
        if_due: int | None = None,
    ) -> Message:
        """Change a message that is still delayed; `ttl` and `delay` (seconds) count from now.

        With `if_due` (ms) it is changed only if it is due in that second.

        Raises:
            Invalid: a value is out of range, the ttl would end before the delay, or the body was
                sealed elsewhere.
            NotFound: no such message.
            Conflict: it can be claimed by now, or is on a normal queue.
            DueChanged: it is due at another instant than `if_due`.
        """
        self._drafts.check_times("The message", ttl, delay)
        check_sealed("The message", queue, body or b"")
        if ttl is not None and delay is not None and ttl < delay:
            raise Invalid(
                f"The ttl ({ttl}) must not be smaller than the delay ({delay}): the message "
                "would expire before anybody could claim it."
            )

        async def act(policy: Policy) -> Message:
            if size > policy.max_post_size:
                raise _too_large(size, policy.max_post_size)
            if not is_message_id(message_id):
                raise NotFound(f"Message {message_id!r} does not exist.")
            if not policy.is_delayed:
                if not await self.messages.get_messages(queue, (message_id,)):
                    raise NotFound(f"Message {message_id} does not exist.")
                raise Conflict("Only a message of a delayed queue can be edited.")
            stored = body
            if body is not None and policy.encrypted:
                stored = await self._sealing().seal_body(queue, body)
            return await self.messages.edit(
                queue,
                Edit(
                    message_id,
                    body=stored,
                    ttl_ms=None if ttl is None else ttl * 1000,
                    delay_ms=None if delay is None else delay * 1000,
                    version=policy.version,
                    if_due=if_due,
                ),
            )

        return await self.policies.decide(queue, act)

    async def delete(self, queue: QueueRef, message_id: str, claim_id: str | None) -> None:
        """Delete one message, by its claim if it is claimed (zaqar-behaviour 3.5).

        Raises:
            Invalid: the claim does not exist (any more), or the message is not claimed.
            Forbidden: somebody's claim holds it.
        """
        if not is_message_id(message_id):
            return
        claim_ids = () if claim_id is None else (claim_id,)
        refused = await self.messages.delete(queue, (message_id,), claim_ids=claim_ids)
        if not refused:
            return
        if claim_id is None:
            raise Forbidden(f"Message {message_id} is claimed; delete it with its claim_id.")
        if refused[0].reason is RefusalReason.NOT_CLAIMED:
            raise Invalid(f"Message {message_id} is not currently claimed.")
        if not is_claim_id(claim_id) or not await self._is_live(queue, claim_id):
            raise Invalid("The specified claim does not exist or has expired.")
        raise Forbidden(f"Message {message_id} is held by another claim.")

    async def delete_many(
        self,
        queue: QueueRef,
        ids: Sequence[str],
        claim_ids: Sequence[str] | None,
        *,
        large: bool = False,
    ) -> None:
        """Delete messages; with `claim_ids`, only what those claims hold, all or none.

        Raises:
            Invalid: the number of ids is out of range, or claim ids are required and missing.
            Forbidden: an id is not held by a listed live claim; nothing was deleted.
        """
        check_range(_IDS, len(ids), 1, self.limits.page(large=large))
        if self.limits.message_delete_with_claim_id and not claim_ids:
            raise Invalid("The parameters 'ids' and 'claim_ids' must both be given.")
        known = [message_id for message_id in ids if is_message_id(message_id)]
        if not known:
            return
        refused = await self.messages.delete(queue, known, claim_ids=claim_ids or None)
        if refused:
            held = ", ".join(refusal.id for refusal in refused)
            raise Forbidden(f"Nothing was deleted: not held by the claims given are {held}.")

    def pop_request(self, limit: int, *, details: bool, large: bool) -> ClaimRequest:
        """What a pop of up to `limit` messages asks for; `details` fills their attempts.

        Raises:
            Invalid: the limit is out of range.
        """
        check_range("'pop'", limit, 1, self.limits.claim(large=large))
        return ClaimRequest(limit, details=details, removes=True)

    async def pop(self, queue: QueueRef, request: ClaimRequest) -> Sequence[Message]:
        """Remove and hand out messages; none goes to two callers."""
        return (await self.queues.claim(queue, request, self.messages)).messages

    async def ranges(self, queue: QueueRef, count: int) -> Sequence[int]:
        """Cut a queue into at most `count` ranges of about equal size (see `Stats`).

        Raises:
            Invalid: the count is out of range.
        """
        check_range("'count'", count, 1, self.limits.max_ranges)
        return (await self.messages.stats(queue, ranges=count)).cuts

    def _sealing(self) -> "EncryptionKeys":
        if self.encryption_keys is None:
            raise Invalid(
                "The queue is encrypted, and this server has no encryption_key_file: nothing was "
                "stored."
            )
        return self.encryption_keys

    async def _is_live(self, queue: QueueRef, claim_id: str) -> bool:
        try:
            await self.messages.get_claim(queue, claim_id)
        except NotFound:
            return False
        return True


def _too_large(size: int, most: int) -> Invalid:
    return Invalid(f"The messages have {size} bytes; this queue takes at most {most}.")
