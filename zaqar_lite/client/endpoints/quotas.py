"""Quotas of projects."""

from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.endpoints.requests import ask, path_of, tell
from zaqar_lite.client.models import ProjectQuota
from zaqar_lite.client.serialization import reader
from zaqar_lite.client.steps import Steps, method

_QUOTA = reader(ProjectQuota)


class Quotas(BaseClient):
    """Show, set and reset quotas."""

    @method
    def show_quota(self, project: str | None = None) -> Steps[ProjectQuota]:
        """Return a project's quotas and usage: the client's own, or any for an operator."""
        path = "/v2/quota" if project is None else path_of("quotas", project)
        return self._exchange(ask("GET", path, _QUOTA))

    @method
    def set_quota(self, /, project: str, **limits: int | None) -> Steps[ProjectQuota]:
        """Set a project's quotas, `queues=100`, in place of all that were set; None lifts one."""
        return self._exchange(ask("PUT", path_of("quotas", project), _QUOTA, limits))

    @method
    def reset_quota(self, project: str) -> Steps[None]:
        """Give a project the default quotas."""
        return self._exchange(tell("DELETE", path_of("quotas", project)))
