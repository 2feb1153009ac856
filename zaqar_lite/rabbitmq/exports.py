"""A topology in the forms of other tools: definitions JSON, Terraform and Mermaid.

The Terraform module that this package ships computes in HCL what `topology` computes in Python, so
that it can be used without Python; the tests hold the two together.
"""

import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from zaqar_lite.rabbitmq.topology import Exchange, Queue, Topology

TERRAFORM_FILES = ("main.tf", "variables.tf", "outputs.tf", "versions.tf", "README.md")
TERRAFORM_VARIABLES = "terraform.tfvars.json"


def body(entity: Exchange | Queue) -> dict[str, Any]:
    """Return the properties of an exchange, or a queue, under the broker's names."""
    own = {"type": entity.type, "internal": False} if isinstance(entity, Exchange) else {}
    return {**own, "durable": True, "auto_delete": False, "arguments": dict(entity.arguments)}


def definitions(topology: Topology) -> str:
    """Return the definitions of a virtual host as JSON (`POST /api/definitions/<vhost>`).

    An import adds and never deletes: it cannot prune.
    """
    document = {
        "exchanges": [{"name": each.name, **body(each)} for each in topology.exchanges],
        "queues": [{"name": each.name, **body(each)} for each in topology.queues],
        "bindings": [{**asdict(each), "arguments": {}} for each in topology.bindings],
    }
    return json.dumps(document, indent=2) + "\n"


def terraform_variables(topology: Topology) -> dict[str, object]:
    """Return the module's variables for a topology; host and users are the module's defaults."""
    same = ("unit_ms", "queue_type", "anchor", "head", "unroutable", "draining_bits")
    return {
        "max_delay_seconds": topology.maximum * topology.unit_ms / 1000,
        "name_prefix": topology.prefix,
        "destinations": dict(topology.targets),
        **{name: getattr(topology, name) for name in same},
    }


def write_terraform(directory: Path, topology: Topology, *, dry_run: bool = False) -> list[str]:
    """Write the module and the topology's variables into a directory; return the files' names."""
    module = resources.files("zaqar_lite.rabbitmq").joinpath("terraform")
    texts = {name: module.joinpath(name).read_text(encoding="utf-8") for name in TERRAFORM_FILES}
    texts[TERRAFORM_VARIABLES] = json.dumps(terraform_variables(topology), indent=2) + "\n"
    if not dry_run:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    return list(texts)


def mermaid(topology: Topology) -> str:
    """Return a Mermaid flow chart: exchanges are hexagons, queues are boxes.

    Thin arrows are bindings, thick ones dead-lettering, dotted ones what has no route.
    """
    # An exchange and a queue may share a name.
    exchanges = {each.name: f"e{n}" for n, each in enumerate(topology.exchanges)}
    queues = {each.name: f"q{n}" for n, each in enumerate(topology.queues)}
    lines = [f'  {node}{{{{"{name}"}}}}' for name, node in exchanges.items()]
    lines += [f'  {node}["{name}"]' for name, node in queues.items()]
    for binding in topology.bindings:
        ends = queues if binding.destination_type == "queue" else exchanges
        key = binding.routing_key.replace("#", "#35;")  # `#` begins an entity code in Mermaid
        label = f'|"{key}"|' if key else ""
        lines.append(f"  {exchanges[binding.source]} -->{label} {ends[binding.destination]}")
    for queue in topology.queues:
        if (after := queue.arguments.get("x-dead-letter-exchange")) is not None:
            label = "" if queue.ttl_ms is None else f'|"after {queue.ttl_ms} ms"|'
            lines.append(f"  {queues[queue.name]} ==>{label} {exchanges[str(after)]}")
    for each in topology.exchanges:
        if (other := each.arguments.get("alternate-exchange")) is not None:
            lines.append(f'  {exchanges[each.name]} -.->|"no route"| {exchanges[str(other)]}')
    return "\n".join(["flowchart LR", *lines]) + "\n"
