"""A topology in the forms of other tools: definitions JSON, Terraform, Mermaid and DOT.

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


def definitions(topology: Topology) -> dict[str, Any]:
    """Return the definitions of a virtual host (`POST /api/definitions/<vhost>`).

    An import adds and never deletes: it cannot prune.
    """
    return {
        "exchanges": [{"name": each.name, **exchange_body(each)} for each in topology.exchanges],
        "queues": [{"name": each.name, **queue_body(each)} for each in topology.queues],
        "bindings": [{**asdict(each), "arguments": {}} for each in topology.bindings],
    }


def terraform_files(topology: Topology) -> dict[str, str]:
    """Return file name -> text: the module as it is shipped, and the topology's variables."""
    module = resources.files("zaqar_lite.rabbitmq").joinpath("terraform")
    texts = {name: module.joinpath(name).read_text(encoding="utf-8") for name in TERRAFORM_FILES}
    return {
        **texts,
        TERRAFORM_VARIABLES: json.dumps(terraform_variables(topology), indent=2) + "\n",
    }


def terraform_variables(topology: Topology) -> dict[str, object]:
    """Return the module's variables for a topology; host and users are the module's defaults."""
    return {
        "max_delay_seconds": topology.maximum * topology.unit_ms / 1000,
        "unit_ms": topology.unit_ms,
        "name_prefix": topology.prefix,
        "queue_type": topology.queue_type.value,
        "anchor": topology.anchor.value,
        "head": topology.head.value,
        "unroutable": topology.unroutable.value,
        "destinations": dict(topology.targets),
        "draining_bits": topology.draining_bits,
    }


def write_terraform(directory: Path, topology: Topology, *, dry_run: bool = False) -> list[str]:
    """Write the files into a directory, made if need be; return their names."""
    texts = terraform_files(topology)
    if not dry_run:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    return list(texts)


def _edges(topology: Topology) -> list[tuple[str, str, str, str]]:
    """Return (from, to, label, kind) of bindings, dead-lettering and alternates; kind is a style.

    An exchange and a queue may share a name, so nodes are named by kind.
    """
    edges = [
        (f"e {b.source}", f"{b.destination_type[0]} {b.destination}", b.routing_key, "binding")
        for b in topology.bindings
    ]
    for queue in topology.queues:
        if (after := queue.arguments.get("x-dead-letter-exchange")) is not None:
            wait = "" if queue.ttl_ms is None else f"after {queue.ttl_ms} ms"
            edges.append((f"q {queue.name}", f"e {after}", wait, "dead letter"))
    alternates = [(e.name, e.arguments.get("alternate-exchange")) for e in topology.exchanges]
    edges += [(f"e {a}", f"e {b}", "no route", "alternate") for a, b in alternates if b]
    return edges


def mermaid(topology: Topology) -> str:
    """Return a Mermaid flow chart: exchanges are hexagons, queues are boxes."""
    nodes = {f"e {e.name}": f"e{n}" for n, e in enumerate(topology.exchanges)}
    nodes |= {f"q {q.name}": f"q{n}" for n, q in enumerate(topology.queues)}
    lines = ["flowchart LR"]
    for node, name in nodes.items():
        text = node[2:]
        lines.append(f'  {name}{{{{"{text}"}}}}' if node[0] == "e" else f'  {name}["{text}"]')
    arrows = {"binding": "-->", "dead letter": "==>", "alternate": "-.->"}
    for start, to, label, kind in _edges(topology):
        # `#` begins an entity code in Mermaid.
        text = label.replace("#", "#35;")
        middle = f'{arrows[kind]}|"{text}"|' if text else arrows[kind]
        lines.append(f"  {nodes[start]} {middle} {nodes[to]}")
    return "\n".join(lines) + "\n"


def dot(topology: Topology) -> str:
    """Return a Graphviz digraph: exchanges are hexagons, queues are boxes."""
    styles = {"binding": "solid", "dead letter": "bold", "alternate": "dotted"}
    lines = [
        "digraph delay {",
        "  rankdir=LR;",
        *(f'  "e {e.name}" [shape=hexagon, label="{e.name}"];' for e in topology.exchanges),
        *(f'  "q {q.name}" [shape=box, label="{q.name}"];' for q in topology.queues),
        *(
            f'  "{start}" -> "{to}" [label="{label}", style={styles[kind]}];'
            for start, to, label, kind in _edges(topology)
        ),
        "}",
    ]
    return "\n".join(lines) + "\n"
