"""The service itself: versions, home document, ping and health."""

from typing import Any

from zaqar_lite.api.http import NO_CONTENT, Request, Response
from zaqar_lite.api.render import to_json
from zaqar_lite.domain.errors import Unavailable
from zaqar_lite.service.health import Health, Report

VERSIONS = {
    "versions": [
        {
            "id": "2",
            "status": "CURRENT",
            "updated": "2014-9-24T04:06:47Z",
            "media-types": [
                {
                    "base": "application/json",
                    "type": "application/vnd.openstack.messaging-v2+json",
                }
            ],
            "links": [{"href": "/v2/", "rel": "self"}],
        }
    ]
}


class ServiceHandlers:
    """The handlers that are about no queue."""

    def __init__(self, health: Health, *, home_document: dict[str, Any]) -> None:
        self._health = health
        self._home = to_json(home_document)

    async def versions(self, request: Request) -> Response:
        """Show the API versions; 300 because upstream says so."""
        return Response(300, to_json(VERSIONS))

    async def home(self, request: Request) -> Response:
        """Show what there is, as a home document."""
        return Response(
            200,
            self._home,
            ((b"cache-control", b"max-age=86400"),),
            media_type=b"application/json-home",
        )

    async def ping(self, request: Request) -> Response:
        """Tell whether the store answers: 204 or 503; HEAD is always 204."""
        if request.method == "HEAD":
            return NO_CONTENT
        try:
            await self._health.ping()
        except Unavailable:
            return Response(503)
        return NO_CONTENT

    async def health(self, request: Request) -> Response:
        """Run real operations on a queue of their own and tell how each went."""
        shown = _shown(await self._health.report())
        pools = await self._health.pools()
        if pools is not None:
            found = {
                name: _UNREACHABLE if one is None else _shown(one) for name, one in pools.items()
            }
            shown = {**found, **shown, "catalog_reachable": True}
        return Response(200, to_json(shown))


_UNREACHABLE = {"storage_reachable": False}


def _shown(report: Report) -> dict[str, Any]:
    volume = report.volume
    return {
        "storage_reachable": report.reachable,
        "operation_status": {
            name: {
                "succeeded": outcome.succeeded,
                "seconds": outcome.seconds,
                "ref": outcome.reference,
            }
            for name, outcome in report.operations.items()
        },
        "message_volume": {
            "free": volume.ready + volume.delayed,
            "claimed": volume.claimed,
            "total": volume.total,
        },
        "capabilities": report.capabilities,
    }
