"""The Terraform module that this package ships, and its variables for a topology.

The module computes in HCL what `topology` computes in Python, so that it can be used without
Python; the tests hold the two together.
"""

import json
from importlib import resources
from pathlib import Path

from zaqar_lite.rabbitmq.topology import Topology

FILES = ("main.tf", "variables.tf", "outputs.tf", "versions.tf", "README.md")
VARIABLES = "terraform.tfvars.json"


def files(topology: Topology) -> dict[str, str]:
    """Return file name -> text: the module as it is shipped, and the topology's variables."""
    module = resources.files("zaqar_lite.rabbitmq").joinpath("terraform")
    texts = {name: module.joinpath(name).read_text(encoding="utf-8") for name in FILES}
    return {**texts, VARIABLES: json.dumps(variables(topology), indent=2) + "\n"}


def variables(topology: Topology) -> dict[str, object]:
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


def write(directory: Path, topology: Topology, *, dry_run: bool = False) -> list[str]:
    """Write the files into a directory, made if need be; return their names."""
    texts = files(topology)
    if not dry_run:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    return list(texts)
