"""Who sends a request, and what it may do: verbs, grants and principals.

A grant is a verb and a pattern of queue names, written `send:orders*`: `*` stands for any run of
characters and `?` for one, and the pattern must match the whole name. `*:orders` grants every
verb. A `!` in front denies instead, and one denial outweighs all that is granted.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple, TypeGuard

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import MAX_PROJECT_ID
from zaqar_lite.domain.patterns import Pattern, Wildcard

MAX_GRANTS = 64
_PATTERN = re.compile(r"[a-zA-Z0-9_\-.*?]{1,64}")
_ANY = "*"
_DENIAL = "!"
_LONGEST_PATH = 2_048
_WILDCARDS = {"tree": Wildcard.MANY, "part": Wildcard.SEGMENT}
_PATH_TOKEN = re.compile(r"(?P<tree>\*\*+)|(?P<part>\*|{[^}]*})|(?P<text>.)", re.DOTALL)


DELIVERIES_PROJECT = "~deliveries"
"""The project of the queues through which the server delivers to subscribers."""
HEALTH_PROJECT = "~health"
"""The project of the queues with which the server finds out whether its store works."""
INTERNAL_PROJECTS = frozenset((DELIVERIES_PROJECT, HEALTH_PROJECT))
"""The projects of the server itself. No key, token, request or quota may name one of them."""


def is_project_id(value: object) -> TypeGuard[str]:
    """Tell whether a key or a token may be of a project with this id."""
    return (
        isinstance(value, str)
        and 1 <= len(value) <= MAX_PROJECT_ID
        and value.isprintable()
        and value not in INTERNAL_PROJECTS
    )


class Verb(Enum):
    """What can be done with a queue.

    SEND     post messages; the first post may create the queue.
    RECEIVE  claim and pop, and settle, delete, renew or release what was claimed.
    READ     list, look at messages, metadata and counts.
    MANAGE   make, change, purge and delete queues; delete and edit messages that nobody claimed;
             subscriptions; signed URLs.
    ADMIN    keys; and, for a key that is bound to no project, the server itself.
    """

    SEND = "send"
    RECEIVE = "receive"
    READ = "read"
    MANAGE = "manage"
    ADMIN = "admin"


class Grant(NamedTuple):
    """One thing that is allowed, or denied: a verb (None: each) on the queues of a pattern."""

    verb: Verb | None
    pattern: str
    allows: bool

    def __str__(self) -> str:
        """Write it as `parse_grant` reads it."""
        verb = _ANY if self.verb is None else self.verb.value
        return f"{'' if self.allows else _DENIAL}{verb}:{self.pattern}"

    def covers(self, verb: Verb, queue: str) -> bool:
        """Tell whether it says anything about this verb on this queue."""
        return self.verb in (None, verb) and fnmatchcase(queue, self.pattern)


def parse_grant(text: str) -> Grant:
    """Read `send:orders*`, `*:orders` or `!read:secret*`.

    Raises:
        Invalid: it is none of these.
    """
    name, colon, pattern = text.removeprefix(_DENIAL).partition(":")
    verbs = {verb.value: verb for verb in Verb}
    if not colon or (name != _ANY and name not in verbs) or not _PATTERN.fullmatch(pattern):
        raise Invalid(
            f"{text!r} is no grant: write VERB:QUEUES, such as 'send:orders*'. A verb is one of "
            f"{', '.join(verbs)} or '*'; QUEUES is a queue's name, in which '*' stands for any "
            "characters and '?' for one; a '!' in front denies."
        )
    return Grant(verbs.get(name), pattern, allows=not text.startswith(_DENIAL))


def parse_grants(texts: Iterable[str]) -> tuple[Grant, ...]:
    """Read up to MAX_GRANTS grants.

    Raises:
        Invalid: one of them is none, there are too many, or nothing is allowed.
    """
    grants = tuple(parse_grant(text) for text in texts)
    if len(grants) > MAX_GRANTS:
        raise Invalid(f"There are {len(grants)} grants; {MAX_GRANTS} are allowed.")
    if not any(grant.allows for grant in grants):
        raise Invalid("No grant allows anything: give at least one, such as 'send:orders*'.")
    return grants


def may(grants: Sequence[Grant], verb: Verb, queue: str | None) -> bool:
    """Tell whether grants allow a verb on a queue; one denial outweighs everything.

    `queue` is None for what concerns all queues of a project, such as listing them: that needs a
    grant on `*`, and no denial of the verb, because the answer would show what is denied.
    """
    allowed = False
    for grant in grants:
        if queue is None:
            covers = grant.verb in (None, verb) and (not grant.allows or grant.pattern == _ANY)
        else:
            covers = grant.covers(verb, queue)
        if covers:
            if not grant.allows:
                return False
            allowed = True
    return allowed


class AccessRule(NamedTuple):
    """A method and a path; `*` and `{name}` stand for (part of) one segment, `**` for anything."""

    method: str
    path: str

    def admits(self, method: str, path: str) -> bool:
        """Tell whether it is for this request; for none whose path is very long."""
        is_long = len(path) > _LONGEST_PATH
        return method == self.method and not is_long and _compiled(self.path).matches(path)


@lru_cache(maxsize=1_000)
def _compiled(path: str) -> Pattern:
    """The pattern of a path, in which `{name}` is as `*`."""
    found = _PATH_TOKEN.finditer(path)
    return Pattern(_WILDCARDS.get(str(one.lastgroup)) or one[0] for one in found)


class How(Enum):
    """What a principal is known by."""

    HEADERS = "headers"
    KEY = "key"
    KEYSTONE = "keystone"
    JWT = "jwt"
    SIGNED = "signed URL"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request is from.

    `project` is the only one that it may act in; None means the one that the request names. `user`
    is an id for the log. Where there are `grants` they decide what it may do; else its `roles` do,
    by the rules of the server's policy. From `expires_at` on (milliseconds) it counts for nothing.
    Where there are `access_rules`, one of them must admit the request.
    """

    how: How
    project: str | None = None
    user: str | None = None
    roles: frozenset[str] = frozenset()
    grants: tuple[Grant, ...] | None = None
    expires_at: int | None = None
    access_rules: tuple[AccessRule, ...] | None = None

    def admits(self, method: str, path: str) -> bool:
        """Tell whether its access rules, if it has some, are for this request."""
        rules = self.access_rules
        return rules is None or any(rule.admits(method, path) for rule in rules)

    @property
    def is_operator(self) -> bool:
        """Whether it is bound to no project, and so may run the server and work in any.

        Not a token of Keystone without a project: that is of a domain, or of nothing.
        """
        return self.project is None and self.how in (How.HEADERS, How.KEY)


TRUSTED = Principal(How.HEADERS)
"""A request whose headers are believed: the server trusts its network, or its gateway."""

SIGNED = Principal(How.SIGNED)
"""A request with a signed URL: what it permits is checked with its signature."""


class Access(NamedTuple):
    """What a request needs: upstream's policy rule and the verb; None where there is none.

    With one of the query parameters `consuming` it is a consumer's request, which needs RECEIVE.
    """

    rule: str | None
    verb: Verb | None
    consuming: frozenset[str] = frozenset()
