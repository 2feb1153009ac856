# Generated from asynchronous/quotas.py by tests/generate_sync.py; change it there.
"""Quotas of projects: the sync client's methods."""

from zaqar_lite.client.endpoints.resources import ask, path_of, tell
from zaqar_lite.client.models import ProjectQuota
from zaqar_lite.client.records import reader
from zaqar_lite.client.sync.calls import SyncCalls

_QUOTA = reader(ProjectQuota)


class SyncQuotas(SyncCalls):
    """Show, set and reset quotas."""

    def show_quota(self, project: str | None = None) -> ProjectQuota:
        """Return a project's quotas and usage: the client's own, or any for an operator."""
        path = "/v2/quota" if project is None else path_of("quotas", project)
        return self.call(ask("GET", path, _QUOTA))

    def set_quota(self, project: str, **limits: int | None) -> ProjectQuota:
        """Set a project's quotas, `queues=100`, in place of all that were set; None lifts one."""
        return self.call(ask("PUT", path_of("quotas", project), _QUOTA, limits))

    def reset_quota(self, project: str) -> None:
        """Give a project the default quotas."""
        self.call(tell("DELETE", path_of("quotas", project)))
