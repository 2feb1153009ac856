"""A topology as RabbitMQ's definitions JSON, and as the bodies of its management API."""

from typing import Any

from zaqar_lite.rabbitmq.topology import Binding, Exchange, Queue, Topology


def exchange_body(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange's properties under the broker's names."""
    return {
        "type": exchange.type,
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": dict(exchange.arguments),
    }


def queue_body(queue: Queue) -> dict[str, Any]:
    """Return a queue's properties under the broker's names."""
    return {"durable": True, "auto_delete": False, "arguments": dict(queue.arguments)}


def binding_body(binding: Binding) -> dict[str, Any]:
    """Return what a binding is besides its ends, under the broker's names."""
    return {"routing_key": binding.routing_key, "arguments": {}}


def definitions(topology: Topology, *, vhost: str | None = None) -> dict[str, Any]:
    """Return the definitions to import.

    Without `vhost` they are for one virtual host (`POST /api/definitions/<vhost>`); with it for a
    node (`load_definitions`). An import adds and never deletes: it cannot prune.
    """
    where = {} if vhost is None else {"vhost": vhost}
    return {
        "exchanges": [
            {"name": each.name, **where, **exchange_body(each)} for each in topology.exchanges
        ],
        "queues": [{"name": each.name, **where, **queue_body(each)} for each in topology.queues],
        "bindings": [
            {
                "source": each.source,
                **where,
                "destination": each.destination,
                "destination_type": each.destination_type,
                **binding_body(each),
            }
            for each in topology.bindings
        ],
    }
