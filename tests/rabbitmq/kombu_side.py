"""How late kombu's native delayed delivery is: `python kombu_side.py AMQP_URL MESSAGES`.

Runs in an environment of its own. Publishes messages of 1 to 60 s with confirms, into quorum queues
as kombu declares them, and prints a JSON list of the milliseconds that each came late.
"""

import json
import sys
import threading
import time
from typing import Any

from kombu import Connection, Exchange, Queue
from kombu.transport import native_delayed_delivery as delays

LONGEST = 60


def publish(url: str, messages: int) -> None:
    """Publish the messages, each when the one before it is confirmed."""
    with Connection(url, transport_options={"confirm_publish": True}) as connection:
        producer = connection.Producer()
        for number in range(messages):
            delay = 1 + number % LONGEST
            producer.publish(
                {"due": time.time() + delay},
                exchange=f"celery_delayed_{delays.MAX_LEVEL}",
                routing_key=delays.calculate_routing_key(delay, "kombu"),
            )


def main() -> None:
    """Measure."""
    url, messages = sys.argv[1], int(sys.argv[2])
    late: list[float] = []
    queue = Queue("kombu", Exchange("kombu", type="topic"), routing_key="kombu")
    with Connection(url, transport_options={"confirm_publish": True}) as connection:
        delays.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        queue(connection).declare()
        delays.bind_queue_to_native_delayed_delivery_exchange(connection, queue)
        threading.Thread(target=publish, args=(url, messages), daemon=True).start()

        def take(body: dict[str, float], message: Any) -> None:
            late.append((time.time() - body["due"]) * 1000)
            message.ack()

        until = time.monotonic() + 2 * LONGEST
        with connection.Consumer(queue, callbacks=[take], prefetch_count=500):
            while len(late) < messages and time.monotonic() < until:
                connection.drain_events(timeout=LONGEST)
    json.dump(late, sys.stdout)


if __name__ == "__main__":
    main()
