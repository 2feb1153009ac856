"""What quotas cost a request: `python -m tests.measure_rates`.

Microseconds a request of what the application does for rates, without any rate, with rates of other
projects, and with rates of the project's own; and of the check that a post makes for quotas.
"""

import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from zaqar_lite.api.call import Call, Head, Result
from zaqar_lite.api.metering import Meter
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.models import StoreOptions
from zaqar_lite.domain.quotas import UNLIMITED, Quota
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load
from zaqar_lite.service.quotas.concurrency_limits import ConcurrencyLimit, ConnectionLimits
from zaqar_lite.service.quotas.quota_usage import MessageQuota
from zaqar_lite.service.quotas.quotas import Quotas
from zaqar_lite.service.quotas.rate_limits import RateLimits
from zaqar_lite.storage.memory import create

ROUNDS = 200_000
_MANY = 10**12


def microseconds(act: Callable[[], object]) -> float:
    """The processor time of one call, the least of five measurements."""
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(ROUNDS // 5):
            act()
        best = min(best, time.process_time() - began)
    return best / (ROUNDS // 5) * 1e6


def _run(work: Coroutine[Any, Any, None]) -> None:
    with suppress(StopIteration):
        work.send(None)


def measured() -> dict[str, float]:
    """Measure; microseconds by what they are of."""
    messages, management = create("memory://", clock=Clock(), options=StoreOptions())
    routes = create_app(load(environment={}, overrides={"store": "memory://"})).routes
    post = next(route for route in routes if route.name == "post_messages")
    claim = next(route for route in routes if route.name == "claim_messages")

    call = Call(Head("POST", b"/v2/queues/q/messages", b"", ()))
    call.project, call.size = "p", 1_000
    found: dict[str, float] = {"nothing (the loop itself)": microseconds(lambda: None)}

    answer = Result(200, bytes(1_000))

    def asked(meter: Meter, rates: RateLimits) -> None:
        if rates.is_on:
            _run(meter.admit(call, post))
            meter.answered(call, post, answer)

    def read(meter: Meter, rates: RateLimits) -> None:
        if rates.is_on:
            _run(meter.admit(call, claim))
            meter.answered(call, claim, answer)

    own = Quota(write_requests=_MANY, write_bytes=_MANY, read_requests=_MANY, read_bytes=_MANY)
    for name, defaults in (
        ("no rate anywhere", UNLIMITED),
        ("rates of managing only", Quota(manage_requests=1)),
        ("rates of requests and bytes", own),
    ):
        quotas = Quotas(management, defaults, Clock(), shared=False)
        rates = RateLimits(quotas)
        meter = Meter(rates, ConnectionLimits(quotas, ConcurrencyLimit("connections")), routes)
        found[f"post, {name}"] = microseconds(partial(asked, meter, rates))
        found[f"claim, {name}"] = microseconds(partial(read, meter, rates))
    stock = MessageQuota(
        messages, management, Quotas(management, UNLIMITED, Clock(), shared=False).of
    )
    found["post, no quota of messages"] = microseconds(lambda: stock.bounds("p"))
    return found


if __name__ == "__main__":
    for what, cost in measured().items():
        print(f"{cost:6.2f} us  {what}")
