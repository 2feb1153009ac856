"""Keystone's trusts: leave for this server's account to act for a user in a project.

A subscriber `trust+https://...` gets each message with a token of the user who subscribed. The
trust is made with that user's own token; a token of it is asked for when a message is sent, and
kept in memory for half of its life.

A trust ends with its subscription. A record in the management store tells whose it is, from before
the subscription is written until Keystone has ended the trust; every process goes through these
records. So a trust is ended whatever ended its subscription, even if Keystone was away then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from random import sample
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from msgspec import Struct, json

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Forbidden, Invalid, NotFound, RecordDamaged, Unavailable
from zaqar_lite.domain.identity import How, Principal
from zaqar_lite.domain.models import Record
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.service.background import Background, BackgroundWorker, LoggedErrors
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.identity.keystone import Keystone
from zaqar_lite.service.records import is_sealed
from zaqar_lite.service.subscriptions.subscriber_cache import subscription_kind
from zaqar_lite.storage.management import ManagementStore

logger = logging.getLogger(__name__)
KIND = "trust"
LOOK_EVERY = 60.0
"""Seconds between two pages of trusts that are looked at."""
UNUSED_MS = 300_000
"""How long a trust may be in no subscription: the request that made it may still write that."""
_PAGE = 100
_MAX_LEFT = 1_000
_MAX_TOKENS = 1_000
_ENDING = LoggedErrors("ending a trust")
MakeTrust = Callable[[Subscription], Awaitable[str]]
"""Makes a trust by the request's user for as long as a subscription lives; answers its id."""


class Trust(Struct, frozen=True):
    """A trust: the name of its subscription's record, when it was made (ms), and its id.

    Without an id it is of a version that named the record by it.
    """

    of: str
    at: int
    id: str = ""


class _Kept(NamedTuple):
    token: str
    until: int

    def __repr__(self) -> str:
        """Show until when it counts, not the token."""
        return f"_Kept(until={self.until})"


class Trusts(BackgroundWorker):
    """Make, use and end trusts; the Keystone provider must have an account."""

    def __init__(self, keystone: Keystone, management: ManagementStore, clock: Clock) -> None:
        self._keystone = keystone
        self._management = management
        self._subscriptions = subscription_kind(management)
        self._clock = clock
        self._left: set[tuple[str, str]] = set()
        self._after: tuple[str, str] | None = None
        self._work = Background("ending trusts", self._end_some, rest=LOOK_EVERY)
        self._kept: Cache[str, _Kept] = Cache(_MAX_TOKENS)
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def left(self, subscription: Subscription) -> None:
        """End the trust of a subscription soon, if it had one: it has ended, or has another."""
        if not subscription.trust:
            return
        if len(self._left) < _MAX_LEFT:  # the others are found among all
            self._left.add((subscription.queue.project, subscription.trust))
        self._work.wake()

    async def make(self, principal: Principal, token: str, subscription: Subscription) -> str:
        """Make a trust by the request's user, with their own token; answer its id.

        Raises:
            Invalid: the request came without a token of Keystone for a project.
            Forbidden: Keystone makes no trust from this token.
            Unavailable: it does not answer, or with something that can't be read.
        """
        if principal.how is not How.KEYSTONE or principal.project is None:
            raise Invalid("A subscriber with trust+ needs a token of Keystone for a project.")
        now = self._clock.now_ms()
        ends = datetime.fromtimestamp(now // 1000 + subscription.ttl, UTC)
        trust = {
            "trustor_user_id": principal.user,
            "trustee_user_id": await self._keystone.own_user(),
            "project_id": principal.project,
            "impersonation": True,
            "roles": [{"name": role} for role in sorted(principal.roles)],
            "expires_at": ends.strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
        }
        answer = await self._keystone.call(
            "POST", "/OS-TRUST/trusts", {"X-Auth-Token": token}, {"trust": trust}
        )
        if answer.status != 201:
            raise Forbidden(
                f"Keystone makes no trust from this token: it answered {answer.status}. A token "
                "that was itself made by a trust or an application credential can't make one."
            )
        made = _id_of(answer.document)
        try:
            await self._management.put_record(
                KIND,
                subscription.queue.project,
                _name_of(made),
                json.encode(Trust(subscription.name, now, made)),
                expected=None,
                ttl_ms=subscription.ttl * 1000,
            )
        except Unavailable:  # nobody would know of it
            with suppress(Unavailable):
                await self._keystone.call(
                    "DELETE", f"/OS-TRUST/trusts/{made}", {"X-Auth-Token": token}
                )
            raise
        return made

    async def token_of(self, trust: str) -> str:
        """Return a token of a trust, good for some time yet.

        Raises:
            NotFound: the trust has ended, or one of its roles was taken away.
            Unavailable: Keystone does not answer.
        """
        lock = self._asking.setdefault(trust, asyncio.Lock())
        async with lock:  # many messages of one subscription ask once
            kept = self._kept.get(trust)
            if kept is None or self._clock.now_ms() >= kept.until:
                kept = await self._log_in(trust)
            return kept.token

    async def _log_in(self, trust: str) -> _Kept:
        answer = await self._keystone.log_in_by(trust)
        if answer.status in (401, 403, 404):
            raise NotFound("The trust of the subscription has ended, or its user lost a role.")
        if answer.status != 201 or answer.token is None:
            raise Unavailable("Keystone gives no token of the subscription's trust.")
        now = self._clock.now_ms()
        ends = self._keystone.parse(answer).expires_at or now
        kept = self._kept[trust] = _Kept(answer.token, now + (ends - now) // 2)
        return kept

    async def _end_some(self) -> None:
        """End the trusts that were left, and look at a page of all others, in an order by chance.

        Keystone is not asked again for a second after it failed at one of them.
        """
        for project, trust in sample([*self._left], len(self._left)):
            with _ENDING:
                record = await self._management.get_record(KIND, project, _name_of(trust))
                if record is not None:
                    await self._end_unused(record, unused_ms=0)
                self._left.discard((project, trust))
        page = await self._management.list_records(KIND, after=self._after, limit=_PAGE)
        self._after = (page[-1].project, page[-1].name) if len(page) == _PAGE else None
        records = await self._management.opened(page)
        for record in sample(records, len(records)):
            with _ENDING:
                await self._end_unused(record, unused_ms=UNUSED_MS)

    async def _end_unused(self, record: Record, *, unused_ms: int) -> None:
        """End a trust, and forget it, unless a live subscription has it or soon may."""
        if is_sealed(record.value):
            return  # by a key that this server has not
        trust = json.decode(record.value, type=Trust)
        trust_id = trust.id or record.name
        try:
            found = await self._subscriptions.find(record.project, trust.of)
        except RecordDamaged:
            return  # until somebody deletes it
        if found is not None and found.trust == trust_id and found.disabled is None:
            return
        if self._clock.now_ms() - trust.at < unused_ms:
            return
        await self._end(trust_id)
        await self._management.delete_record(KIND, record.project, record.name)

    async def _end(self, trust: str) -> None:
        """End a trust with a token of it, which acts for the trust's user: nobody else may end it.

        Raises:
            Unavailable: Keystone does not answer.
        """
        status = 401
        for _ in range(2):  # a token that was kept may have been revoked
            try:
                token = await self.token_of(trust)
            except NotFound:
                return  # it has ended, or gives no token any more
            answer = await self._keystone.call(
                "DELETE", f"/OS-TRUST/trusts/{trust}", {"X-Auth-Token": token}
            )
            self._kept.pop(trust, None)
            status = answer.status
            if status != 401:
                break
        if status not in (204, 404):
            logger.warning("Keystone ends no trust (%s): it lasts until its ttl", status)


def _id_of(document: Any) -> str:  # noqa: ANN401 - Keystone's
    """The id of the trust that Keystone says it has made."""
    try:
        made = document["trust"]["id"]
    except (KeyError, TypeError):
        made = None
    if not isinstance(made, str) or not made:
        raise Unavailable("Keystone does not tell the id of the trust it made. Try again later.")
    return made


def _name_of(trust: str) -> str:
    """The name of a trust's record, which is in the clear also where its value is sealed."""
    return sha256(trust.encode()).hexdigest()


async def trusted(subscription: Subscription, make: MakeTrust | None) -> Subscription:
    """Give a subscription a trust as long as its life, if it needs one.

    Raises:
        Invalid: it needs one, and nobody can make it.
    """
    if not subscription.needs_trust:
        return replace(subscription, trust="")
    if make is None:
        raise Invalid("A subscriber with trust+ needs a request with a token of Keystone.")
    return replace(subscription, trust=await make(subscription))
