"""The counters of a relay, and the page where Prometheus reads them."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

LATENESS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)  # seconds


@dataclass
class RelayMetrics:
    """Counts since the relay started.

    Attributes:
        posts: answers by status; `none` where no answer came.
        parked: messages that can never be posted, by status.
        cancelled: messages that came under a cancelled id.
        redelivered: messages that the broker delivered again.
        connections: connections to the broker, the first one included.
        in_flight: messages held now, not yet acknowledged.
        lateness: acknowledged messages by upper bound of seconds after they were due.
    """

    posts: Counter[str] = field(default_factory=Counter)
    parked: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    redelivered: int = 0
    connections: int = 0
    in_flight: int = 0
    lateness: Counter[float] = field(default_factory=Counter)
    lateness_sum: float = 0.0

    def late(self, seconds: float) -> None:
        """Count a message that was stored so many seconds after it was due."""
        self.lateness[next((b for b in LATENESS if seconds <= b), float("inf"))] += 1
        self.lateness_sum += seconds

    def render(self) -> str:
        """Return the counts in Prometheus' text format."""
        lines = []
        for name, counts in (("posts", self.posts), ("failed", self.parked)):
            lines.append(f"# TYPE relay_{name}_total counter")
            lines += [f'relay_{name}_total{{code="{c}"}} {n}' for c, n in sorted(counts.items())]
        for name, kind, number in [
            ("relay_cancelled_total", "counter", self.cancelled),
            ("relay_redelivered_total", "counter", self.redelivered),
            ("relay_connections_total", "counter", self.connections),
            ("relay_unacked", "gauge", self.in_flight),
        ]:
            lines += [f"# TYPE {name} {kind}", f"{name} {number}"]
        lines += ["# TYPE relay_lateness_seconds histogram"]
        total = 0
        for bound in (*LATENESS, float("inf")):
            total += self.lateness[bound]
            label = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'relay_lateness_seconds_bucket{{le="{label}"}} {total}')
        lines += [f"relay_lateness_seconds_sum {self.lateness_sum:.3f}"]
        lines += [f"relay_lateness_seconds_count {total}"]
        return "\n".join(lines) + "\n"


@asynccontextmanager
async def served(metrics: RelayMetrics, port: int) -> AsyncIterator[int]:
    """Answer every HTTP request on the port with the metrics; yields the port (0 picks one)."""

    async def answer(_: web.BaseRequest) -> web.Response:
        kind = {"Content-Type": "text/plain; version=0.0.4"}
        return web.Response(text=metrics.render(), headers=kind)

    # Who has not sent all of a request doesn't keep the relay from ending.
    runner = web.ServerRunner(web.Server(answer, access_log=None), shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
