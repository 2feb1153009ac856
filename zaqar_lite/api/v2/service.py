"""The service itself: versions, home document, ping and health."""

from collections.abc import Callable
from typing import Any

from zaqar_lite.api.call import NO_CONTENT, Call, Result
from zaqar_lite.api.routes import route
from zaqar_lite.service.health import Health, Report

VERSIONS = {
    "versions": [
        {
            "id": "2",
            "status": "CURRENT",
            "updated": "2014-9-24T04:06:47Z",
            "media-types": [
                {"base": "application/json", "type": "application/vnd.openstack.messaging-v2+json"}
            ],
            "links": [{"href": "/v2/", "rel": "self"}],
        }
    ]
}


class ServiceActions:
    """The actions that are about no queue."""

    def __init__(self, health: Health, *, home_document: Callable[[], dict[str, Any]]) -> None:
        self._health = health
        self._home_document = home_document

    @route("GET /", "", (300,), public=True, needs_store=False)
    async def versions(self, call: Call) -> Result:
        """List the API versions; 300 because upstream says so."""
        return Result(300, VERSIONS)

    @route("GET /v2/", "", (200,), needs_store=False)
    @route("GET /v2", "", (200,), needs_store=False, name="home_without_slash")
    async def home(self, call: Call) -> Result:
        """Show the home document."""
        return Result(
            200,
            self._home_document(),
            ((b"cache-control", b"max-age=86400"),),
            media_type=b"application/json-home",
        )

    @route("GET /v2/ping", "ping:get", (204,))
    @route(
        "HEAD /v2/ping",
        "ping:get",
        (204,),
        needs_store=False,
        name="ping_head",
        summary="Ping the server",
    )
    async def ping(self, call: Call) -> Result:
        """Ping the store; HEAD is always 204."""
        if call.method != "HEAD":
            await self._health.ping()
        return NO_CONTENT

    @route("GET /v2/health", "health:get admin", (200,))
    async def health(self, call: Call) -> Result:
        """Check health."""
        shown = _shown(await self._health.report())
        pools = await self._health.pools()
        if pools is not None:
            found = {
                name: _UNREACHABLE if one is None else _shown(one) for name, one in pools.items()
            }
            shown = {**found, **shown, "catalog_reachable": True}
        return Result(200, shown)


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
