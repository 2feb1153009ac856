"""Keystone's trusts: leave for this server's account to act for a user in a project.

A subscriber `trust+https://...` gets each message with a token of the user who subscribed. The
trust is made with that user's own token and ends with the subscription; a token of it is asked for
when a message is sent, and kept in memory for half of its life.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple
from weakref import WeakValueDictionary

from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Forbidden, Invalid, NotFound, Unavailable
from zaqar_lite.domain.identity import How, Principal
from zaqar_lite.domain.subscriptions import Subscription
from zaqar_lite.service.identity.keystone import Keystone, parse_token

_MAX_TOKENS = 1_000
MakeTrust = Callable[[int], Awaitable[str]]
"""Makes a trust from who asks, for so many seconds, and answers its id."""


class _Kept(NamedTuple):
    token: str
    until: int


class Trusts:
    """Make trusts, and tokens of them; the Keystone provider must have an account."""

    def __init__(self, keystone: Keystone, clock: Clock) -> None:
        self._keystone = keystone
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def make(self, principal: Principal, token: str, seconds: int) -> str:
        """Make a trust from who asks, by their own token, for so long; answer its id.

        Raises:
            Invalid: who asks was not let in by a token of Keystone for a project.
            Forbidden: Keystone makes no trust from this token.
            Unavailable: it does not answer.
        """
        if principal.how is not How.KEYSTONE or principal.project is None:
            raise Invalid("Only who has a token of Keystone for a project can make a trust.")
        ends = datetime.fromtimestamp(self._clock.now_ms() // 1000 + seconds, UTC)
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
        return str(answer.document["trust"]["id"])

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
        now, ends = self._clock.now_ms(), parse_token(answer.document["token"]).expires_at
        kept = self._kept[trust] = _Kept(answer.token, now + (ends - now) // 2)
        self._kept.move_to_end(trust)
        if len(self._kept) > _MAX_TOKENS:
            self._kept.popitem(last=False)
        return kept


async def trusted(subscription: Subscription, make: MakeTrust | None) -> Subscription:
    """Give a subscription a trust as long as its life, if it needs one.

    Raises:
        Invalid: it needs one, and nobody can make it.
    """
    if not subscription.needs_trust:
        return replace(subscription, trust="")
    if make is None:
        raise Invalid("A subscriber with trust+ needs a request with a token of Keystone.")
    return replace(subscription, trust=await make(subscription.ttl))
