"""The quotas of projects: those of the settings, and what was set otherwise for single ones.

All that is set for single projects is held in memory, so that asking costs no call. A record
counts the changes; other processes look at it every few seconds, and read all when it has moved.
"""

from collections.abc import Callable, Mapping
from typing import Any

from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.identity import INTERNAL_PROJECTS
from zaqar_lite.domain.limits import MAX_PROJECT_ID
from zaqar_lite.domain.quotas import UNLIMITED, Quota
from zaqar_lite.service.background import Background, BackgroundWorker
from zaqar_lite.service.records import Kind, Most, all_records
from zaqar_lite.storage.management import ManagementStore

KIND, CHANGES = "quota", "quota-changes"
MAX_PROJECTS = 10_000
"""The most projects that may have quotas of their own."""
LOOK_EVERY = 5.0
"""Seconds after which a process has seen what another one set."""
_NAME = "quota"
_READ_AT_ONCE = 500
"""Projects whose quotas are read before others have their turn: about 4 ms."""


class Quotas(BackgroundWorker):
    """Answer, set and follow the quotas of projects."""

    has_rates: bool
    """Whether any project has a rate."""
    has_connections: bool
    """Whether any project has a quota of connections."""
    bound_messages: bool
    """Whether any project has a quota of messages or bytes."""

    def __init__(self, management: ManagementStore, defaults: Quota, *, shared: bool) -> None:
        self._management = management
        most = Most(MAX_PROJECTS, Invalid, "projects with quotas of their own")
        form = dict[str, Any]
        self._kind = Kind(management, KIND, "The quota", form, most, of_server=True)
        self._defaults = defaults
        self._shared = shared
        self._own: dict[str, Mapping[str, Any]] = {}
        self._set: dict[str, Quota] = {}
        self._seen: int | None = None
        self._work = Background("following quotas", self.load, rest=LOOK_EVERY)
        self.changed: Callable[[], None] = lambda: None
        """Called when something was set, here or elsewhere."""
        self._replace({}, {})

    def of(self, project: str) -> Quota:
        """The quota of a project."""
        return self._set.get(project, self._defaults)

    async def own(self, project: str) -> Mapping[str, int | None]:
        """What was set for a project itself.

        Raises:
            Invalid: there can be no such project.
        """
        _check(project)
        return await self._kind.find(project, _NAME) or {}

    async def set(self, project: str, document: Mapping[str, Any]) -> None:
        """Replace a project's quotas; those that are not named get the defaults.

        They hold at once in this process, and within LOOK_EVERY in others.

        Raises:
            Invalid: a quota is wrong, or too many projects have quotas of their own.
            Unavailable: others change the project's quotas all the time.
        """
        _check(project)
        self._defaults.changed(document)
        await self._kind.write(project, _NAME, lambda _: dict(document))
        own = {**self._own, project: dict(document)}
        self._replace(own, {**self._set, project: self._defaults.changed(document)})
        await self._tell()

    async def reset(self, project: str) -> None:
        """Give a project the default quotas again.

        Raises:
            Invalid: there can be no such project.
        """
        _check(project)
        await self._kind.delete(project, _NAME)
        own = {name: one for name, one in self._own.items() if name != project}
        kept = {name: one for name, one in self._set.items() if name != project}
        self._replace(own, kept)
        await self._tell()

    async def load(self) -> None:
        """Read what is set, if it has changed since it was read last."""
        record = await self._management.get_record(CHANGES, "", _NAME)
        version = 0 if record is None else record.version
        if version == self._seen:
            return
        own: dict[str, Mapping[str, Any]] = {}
        quotas: dict[str, Quota] = {}
        before, defaults = self._own, self._defaults
        async for record in all_records(
            self._management, KIND, most=MAX_PROJECTS, page_size=_READ_AT_ONCE
        ):
            own[record.project] = document = self._kind.decode(record)
            quotas[record.project] = defaults.changed(document)
        if self._own is not before or self._defaults is not defaults:  # changed meanwhile
            await self.load()
            return
        self._seen = version
        self._replace(own, quotas)

    def use_defaults(self, defaults: Quota) -> None:
        """Let other defaults hold from now on; what was set for projects stays."""
        self._defaults = defaults
        quotas = {name: defaults.changed(document) for name, document in self._own.items()}
        self._replace(self._own, quotas)

    def start(self) -> None:
        """Follow what other processes set, where the store is shared."""
        if self._shared:
            super().start()

    async def _tell(self) -> None:
        """Count the change; one that is lost by a crash here is seen with the next."""
        await self._management.put_record(CHANGES, "", _NAME, b"{}", expected=None)

    def _replace(self, own: dict[str, Mapping[str, Any]], quotas_of: dict[str, Quota]) -> None:
        """Let what is set for projects itself, and the quotas that they have by it, hold."""
        self._own, self._set = own, quotas_of
        quotas, no_rates = (self._defaults, *quotas_of.values()), UNLIMITED.rates
        self._set |= dict.fromkeys(INTERNAL_PROJECTS, UNLIMITED)  # our own workers wait there
        self.has_rates = any(quota.rates != no_rates for quota in quotas)
        self.has_connections = any(quota.connections is not None for quota in quotas)
        self.bound_messages = any(map(bounds_messages, quotas))
        self.changed()


def bounds_messages(quota: Quota) -> bool:
    """Whether a quota bounds what is stored: messages, or the bytes of their bodies."""
    return quota.messages is not None or quota.bytes is not None


def _check(project: str) -> None:
    if len(project) > MAX_PROJECT_ID:
        raise Invalid(f"A project id has at most {MAX_PROJECT_ID} characters.")
    if project in INTERNAL_PROJECTS:
        raise Invalid(f"{project} is the server's own project.")
