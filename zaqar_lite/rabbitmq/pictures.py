"""A topology as a picture: Mermaid for a page, DOT for Graphviz."""

from zaqar_lite.rabbitmq.topology import Topology


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
