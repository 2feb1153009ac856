"""Quotas: what a project has and may have; operators of the server set them."""

from collections.abc import Mapping
from typing import Any

from zaqar_lite.api import documents
from zaqar_lite.api.call import NO_CONTENT, Call, Result
from zaqar_lite.api.routes import route
from zaqar_lite.service.quotas.quota_usage import QuotaUsage
from zaqar_lite.service.quotas.quotas import Quotas


class QuotaActions:
    """The actions of `/v2/quota` and `/v2/quotas`."""

    def __init__(self, quotas: Quotas, usage: QuotaUsage) -> None:
        self._quotas = quotas
        self._usage = usage

    @route("GET /v2/quota -> Quota", "quota:get read", (200,))
    async def show_quota(self, call: Call) -> Result:
        """Show the project's quotas and usage."""
        return Result(200, await self._shown(call.project))

    @route("GET /v2/quotas/{project_id} -> Quota", "quotas:get admin", (200,))
    async def show_quotas(self, call: Call) -> Result:
        """Show a project's quotas and usage."""
        project = call.path_values[0]
        own = await self._quotas.own(project)
        return Result(200, {**await self._shown(project), "own": own})

    @route("PUT /v2/quotas/{project_id} Quotas -> Quota", "quotas:update admin", (200,))
    async def set_quotas(self, call: Call) -> Result:
        """Set a project's quotas."""
        document = await documents.sent_object(call)
        await self._quotas.set(call.path_values[0], document)
        return await self.show_quotas(call)

    @route("DELETE /v2/quotas/{project_id}", "quotas:delete admin", (204,))
    async def reset_quotas(self, call: Call) -> Result:
        """Give a project the default quotas."""
        await self._quotas.reset(call.path_values[0])
        return NO_CONTENT

    async def _shown(self, project: str) -> Mapping[str, Any]:
        return {
            "project": project,
            "quotas": self._quotas.of(project).as_document(),
            "usage": await self._usage.of(project),
        }
