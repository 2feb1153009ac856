"""The file policy.yaml: an operator's own rules, in oslo.policy's language."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.identity import Principal
from zaqar_lite.service.identity.authorization import Rules

if TYPE_CHECKING:
    from oslo_policy.policy import Enforcer

_ELSEWHERE = frozenset({"pools", "flavors", "topics", "health", "keys", "quotas"})
"""Rules about these are accepted even if this server, with its settings, has no such routes."""

_NOBODY = {"roles": ["member"], "project_id": None, "user_id": None}
_ASKS_ELSEWHERE = re.compile(r"\bhttps?:")


@dataclass(eq=False, repr=False)
class PolicyFile:
    """A file of rules by their names.

    `defaults` are the default rules of all routes, as texts. `use` is called with the rules that
    were read.
    """

    path: Path
    defaults: Mapping[str, str]
    use: Callable[[Rules], None]

    def read(self) -> Callable[[], None]:
        """Read and check the file; answer a function that puts its rules into force.

        Raises:
            ConfigurationError: the file can't be read, a rule is wrong, or oslo.policy is missing.
        """
        try:
            from oslo_config import cfg  # noqa: PLC0415 - an extra
            from oslo_policy import policy  # noqa: PLC0415
        except ModuleNotFoundError as exc:
            raise ConfigurationError(
                f"policy_file needs the Python package {exc.name!r}: "
                "pip install 'zaqar-lite[keystone]'."
            ) from None
        try:
            text = self.path.read_text(encoding="utf-8")
            given = policy.parse_file_contents(text)
        except OSError as exc:
            raise self._wrong(str(exc.strerror)) from None
        except ValueError as exc:
            raise self._wrong(f"it is not YAML: {exc}") from None
        self._check_names(given)
        rules = policy.Rules.from_dict({**self.defaults, **given})
        for name, rule in given.items():
            # oslo.policy reads a rule that it can't parse as "!" (never). A rule with a URL would
            # make it ask a web server at each check.
            if ("!" in str(rules[name]) and "!" not in rule) or _ASKS_ELSEWHERE.search(rule):
                raise self._wrong(f"the rule {name!r} can't be used: {rule!r}")
        enforcer = policy.Enforcer(cfg.ConfigOpts(), use_conf=False)
        enforcer.set_rules(rules, use_conf=False)
        try:
            enforcer.check_rules(raise_on_violation=True)
        except policy.InvalidDefinitionError as exc:
            why = f"a rule refers to a rule that does not exist, or to itself: {exc}"
            raise self._wrong(why) from None
        for name, rule in given.items():
            try:
                _try_all(rules[name], enforcer)
            except (SyntaxError, TypeError, ValueError) as exc:
                raise self._wrong(f"the rule {name!r} can't be used: {rule!r}: {exc}") from None
        return partial(self.use, partial(_allows, enforcer, frozenset(given)))

    def _check_names(self, given: object) -> None:
        """Refuse what is not a mapping of texts, and names of rules that no route has."""
        if not isinstance(given, dict) or not all(
            isinstance(text, str) for pair in given.items() for text in pair
        ):
            raise self._wrong("it is not a mapping of names to rules")
        for name in given:
            about, colon, _ = name.partition(":")
            if colon and name not in self.defaults and about not in _ELSEWHERE:
                raise self._wrong(f"there is no rule {name!r}")

    def _wrong(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"policy_file: {self.path}: {why}.")


def _try_all(check: Any, enforcer: "Enforcer") -> None:  # noqa: ANN401 - oslo.policy has no types
    """Ask each part of a rule: a `%(name)` without its `s` fails only then, with a ValueError."""
    parts = [check.rule] if hasattr(check, "rule") else getattr(check, "rules", ())
    for part in parts:
        _try_all(part, enforcer)
    if not parts:
        check(dict.fromkeys(("project_id", "queue_name")), _NOBODY, enforcer)


def _allows(
    enforcer: "Enforcer", given: frozenset[str], rule: str, principal: Principal, queue: str | None
) -> bool | None:
    """Whether the file's rule lets a principal act; None if the file does not have the rule."""
    if rule not in given:
        return None
    target = {"project_id": principal.project, "queue_name": queue}
    who = {
        "roles": list(principal.roles),
        "project_id": principal.project,
        "user_id": principal.user,
    }
    return bool(enforcer.enforce(rule, target, who))
