# Generated from asynchronous/quotas.py by tests/generate_sync.py; change it there.
"""Quotas of projects: the sync client's methods."""

from zaqar_lite.client.endpoints import quotas
from zaqar_lite.client.models import ProjectQuota
from zaqar_lite.client.sync.calls import SyncCalls


class SyncQuotas(SyncCalls):
    """Show, set and reset quotas."""

    def show_quota(self, project: str | None = None) -> ProjectQuota:
        """Return quotas and usage of the client's project; an operator's, of any."""
        return self.call(quotas.show_quota(project))

    def set_quota(self, project: str, **limits: int | None) -> ProjectQuota:
        """Set a project's quotas, `queues=100`, in place of all that were set; None lifts one."""
        return self.call(quotas.set_quota(project, limits))

    def reset_quota(self, project: str) -> None:
        """Give a project the default quotas."""
        self.call(quotas.reset_quota(project))
