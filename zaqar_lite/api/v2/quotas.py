"""Quotas: what a project has and may have; and setting that, for who runs the server."""

from collections.abc import Mapping
from typing import Any

from zaqar_lite.api import documents
from zaqar_lite.api.http import NO_CONTENT, Request, Response
from zaqar_lite.api.render import to_json
from zaqar_lite.service.quotas import Quotas
from zaqar_lite.service.usage import Usage


class QuotaHandlers:
    """The handlers of `/v2/quota` and `/v2/quotas`."""

    def __init__(self, quotas: Quotas, usage: Usage) -> None:
        self._quotas = quotas
        self._usage = usage

    async def own(self, request: Request) -> Response:
        """Show the quotas and the usage of the request's project."""
        return Response(200, to_json(await self._shown(request.project)))

    async def get(self, request: Request) -> Response:
        """Show those of any project, and what was set for it."""
        project = request.path_values[0]
        own = await self._quotas.own(project)
        return Response(200, to_json({**await self._shown(project), "own": own}))

    async def set(self, request: Request) -> Response:
        """Set quotas of a project."""
        document = documents.parse_object(await documents.read(request))
        await self._quotas.set(request.path_values[0], document)
        return await self.get(request)

    async def reset(self, request: Request) -> Response:
        """Give a project the default quotas."""
        await self._quotas.reset(request.path_values[0])
        return NO_CONTENT

    async def _shown(self, project: str) -> Mapping[str, Any]:
        return {
            "project": project,
            "quotas": self._quotas.of(project).as_document(),
            "usage": await self._usage.of(project),
        }
