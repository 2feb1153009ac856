"""Quotas of projects: the async client's methods."""

from zaqar_lite.client.asynchronous.calls import AsyncCalls
from zaqar_lite.client.endpoints import quotas
from zaqar_lite.client.models import ProjectQuota


class AsyncQuotas(AsyncCalls):
    """Show, set and reset quotas."""

    async def show_quota(self, project: str | None = None) -> ProjectQuota:
        """Return quotas and usage of the client's project; an operator's, of any."""
        return await self.call(quotas.show_quota(project))

    async def set_quota(self, project: str, **limits: int | None) -> ProjectQuota:
        """Set a project's quotas, `queues=100`, in place of all that were set; None lifts one."""
        return await self.call(quotas.set_quota(project, limits))

    async def reset_quota(self, project: str) -> None:
        """Give a project the default quotas."""
        await self.call(quotas.reset_quota(project))
