"""What a principal may do: by its grants, or by its roles and the rules of the policy.

The rules have Zaqar's names and defaults: any role of a project may do everything with its queues;
what concerns the server needs the role `admin`.
"""

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any

from zaqar_lite.domain.errors import Denied
from zaqar_lite.domain.identity import Access, How, Principal, Verb, may
from zaqar_lite.domain.metadata import FILTER

_OF_A_PROJECT = ("keys:", "data_keys:")
"""What a project's own `admin` may do. Whatever else needs it concerns the server: a key for that
is bound to no project."""
_DEAD_LETTERS = "_dead_letter_queue"
_SUBSCRIPTIONS_QUEUES = ("dead_letter_queue", "events_queue")
_POST = Access("messages:create", Verb.SEND)
_LIST = Access("messages:get_all", Verb.READ)
_SHARED = {
    ("messages", "GET"): (_LIST,),
    ("messages", "POST"): (_POST,),
    ("messages", "PATCH"): (
        Access("messages:update", Verb.MANAGE),
        Access("claims:settle", Verb.RECEIVE),
    ),
    ("messages", "DELETE"): (
        Access("messages:delete_all", Verb.MANAGE),
        Access("messages:delete", Verb.RECEIVE),
    ),
    ("events", "GET"): (Access("messages:events", Verb.READ),),
    ("subscriptions", "GET"): (Access("subscription:get_all", Verb.READ),),
}
"""What a signed URL gives, by resource and method; see `check_share` for the others."""
_ANY_CLAIM = (Access("claims:create", Verb.RECEIVE),)
_ANY_SUBSCRIPTION = (Access("subscription:create", Verb.MANAGE),)


Rules = Callable[[str, Principal, str | None], bool | None]
"""What an operator's own rules say of a rule's name, a principal and a queue; None: nothing."""


class Defaults(Enum):
    """Which roles a rule asks for where the policy says nothing.

    ZAQAR    upstream's: admin for the server and for keys, any role for everything else.
    SECURE   reader reads, member sends and receives, manager manages, admin administers; a later
             role includes those before it.
    """

    ZAQAR = "zaqar"
    SECURE = "secure"


_RANKS = ("reader", "member", "manager", "admin")
_LEAST = {
    Verb.READ: "reader",
    Verb.SEND: "member",
    Verb.RECEIVE: "member",
    Verb.MANAGE: "manager",
    Verb.ADMIN: "admin",
}


class Authorizer:
    """Decide what a principal may do."""

    def __init__(self, defaults: Defaults = Defaults.ZAQAR) -> None:
        self._defaults = defaults
        self._rules: Rules = lambda _rule, _principal, _queue: None

    def use_rules(self, rules: Rules) -> None:
        """Let an operator's own rules decide from now on, where they say something."""
        self._rules = rules

    def default_rule(self, verb: Verb | None) -> str:
        """What is asked for where nothing else is said, in the language of policy files."""
        if verb is None or (self._defaults is Defaults.ZAQAR and verb is not Verb.ADMIN):
            return ""
        ranks = _RANKS[_RANKS.index(_LEAST[verb]) :]
        return " or ".join(f"role:{role}" for role in ranks)

    def check(self, principal: Principal, access: Access, queue: str | None) -> None:
        """Refuse what a principal may not do with a queue; None: with its project's queues as such.

        Raises:
            Denied: it may not.
        """
        if access.rule is None or principal.how is How.HEADERS or principal.how is How.SIGNED:
            return  # what a signature permits was checked with it
        if principal.grants is not None:
            allowed = access.verb is None or (
                may(principal.grants, access.verb, queue)
                and (
                    access.verb is not Verb.ADMIN
                    or access.rule.startswith(_OF_A_PROJECT)
                    or principal.is_operator
                )
            )
        else:
            said = self._rules(access.rule, principal, queue)
            allowed = self._by_role(principal.roles, access.verb) if said is None else said
        if not allowed:
            raise Denied(f"{principal.user} may not {access.rule} of {queue or 'all queues'}")

    def check_metadata(self, principal: Principal, metadata: Mapping[str, Any]) -> None:
        """Refuse metadata that would reach queues which the principal may not.

        Dead letters are posted to the queue they name; a filter copies what is posted to any
        queue of the project.

        Raises:
            Denied: it may not.
        """
        self.check_target(principal, metadata.get(_DEAD_LETTERS))
        if metadata.get(FILTER) is not None:
            self.check(principal, _LIST, None)

    def check_subscription(
        self, principal: Principal, queue: str, options: Mapping[str, Any] | None
    ) -> None:
        """Refuse a subscription that would read, or post to, queues which the principal may not.

        It sends every message of its queue away, and posts to the queues that its options name.

        Raises:
            Denied: it may not.
        """
        self.check(principal, _LIST, queue)
        for name in _SUBSCRIPTIONS_QUEUES:
            self.check_target(principal, (options or {}).get(name))

    def check_target(self, principal: Principal, queue: object) -> None:
        """Refuse that messages go to another queue, if one is named, that it may not post to.

        Raises:
            Denied: it may not.
        """
        if not isinstance(queue, str):
            return
        if principal.how is How.SIGNED:
            raise Denied("a signed URL is for its own queue")
        self.check(principal, _POST, queue)

    def check_share(
        self,
        principal: Principal,
        queue: str,
        resources: Collection[str],
        methods: Collection[str],
    ) -> None:
        """Refuse to sign what the principal may not do itself.

        Raises:
            Denied: it may not.
        """
        for resource in resources or ("messages",):
            others = _ANY_CLAIM if resource == "claims" else _ANY_SUBSCRIPTION
            for method in methods or ("GET",):
                for access in _SHARED.get((resource, method), others):
                    self.check(principal, access, queue)

    def _by_role(self, roles: frozenset[str], verb: Verb | None) -> bool:
        if verb is None:
            return True
        held = {role.lower() for role in roles}
        if self._defaults is Defaults.ZAQAR:
            return verb is not Verb.ADMIN or "admin" in held
        return bool(held.intersection(_RANKS[_RANKS.index(_LEAST[verb]) :]))
