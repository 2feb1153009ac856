"""Quotas of projects: the async client's methods."""

from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.endpoints.resources import ask, path_of, tell
from zaqar_lite.client.models import ProjectQuota
from zaqar_lite.client.records import reader

_QUOTA = reader(ProjectQuota)


class AsyncQuotas(AsyncCalls):
    """Show, set and reset quotas."""

    async def show_quota(self, project: str | None = None) -> ProjectQuota:
        """Return a project's quotas and usage: the client's own, or any for an operator."""
        path = "/v2/quota" if project is None else path_of("quotas", project)
        return await self.call(ask("GET", path, _QUOTA))

    async def set_quota(self, project: str, **limits: int | None) -> ProjectQuota:
        """Set a project's quotas, `queues=100`, in place of all that were set; None lifts one."""
        return await self.call(ask("PUT", path_of("quotas", project), _QUOTA, limits))

    async def reset_quota(self, project: str) -> None:
        """Give a project the default quotas."""
        await self.call(tell("DELETE", path_of("quotas", project)))
