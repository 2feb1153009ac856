"""The Terraform module: it parses, and Terraform itself computes what Python computes."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.services.process import run_program
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.rabbitmq import exports
from zaqar_lite.rabbitmq.topology import Anchor, Binding, Head, QueueType, Topology, Unroutable

TERRAFORM = shutil.which("terraform") or shutil.which("tofu")
MODULE = Path(exports.__file__).parent / "terraform"
needs_terraform = pytest.mark.skipif(
    TERRAFORM is None, reason="no terraform and no tofu on the PATH"
)
TOPOLOGIES = [
    Topology(1),
    Topology(4),
    Topology(5, draining_bits=4, destinations={"": "bare", "mail": "m"}),
    Topology(6, anchor=Anchor.LEFT, destinations={"a.b": "q"}, queue_type=QueueType.CLASSIC),
    Topology(6, head=Head.ONE_WORD, unroutable=Unroutable.RETURN, prefix="x.y", unit_ms=20),
    Topology(29),
    Topology(39, unit_ms=1),
]


def run(directory: Path, *words: str) -> str:
    assert TERRAFORM is not None
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TF_CLI_CONFIG")}
    done = run_program(
        [TERRAFORM, *words],
        cwd=directory,
        env={**environment, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def without_resources(place: Path) -> None:
    """Write the module without its resources, which alone need the provider."""
    module = place / "module"
    exports.write_terraform(module, Topology(4))
    (module / "versions.tf").unlink()
    (module / exports.TERRAFORM_VARIABLES).unlink()
    main = module / "main.tf"
    main.write_text(main.read_text().partition('resource "')[0])


def wrong(place: Path, **given: object) -> str:
    """Plan the module with these variables; return what Terraform says against it."""
    call = {"module": {"t": {"source": "./module", **given}}}
    (place / "main.tf.json").write_text(json.dumps(call | {"output": {"t": {"value": 1}}}))
    run(place, "init", "-input=false")
    with pytest.raises(AssertionError) as refusal:
        run(place, "plan", "-input=false", "-no-color")
    return " ".join(str(refusal.value).replace("│", " ").split())


@needs_terraform
def test_terraform_refuses_what_python_refuses(tmp_path: Path) -> None:
    without_resources(tmp_path)
    with pytest.raises(Invalid, match="beyond RabbitMQ's ten years"):
        Topology(30)
    told = wrong(tmp_path, max_delay_seconds=540_000_000)
    assert "30 bits of 1000 ms need a queue with a time to live beyond" in told
    assert "grows from fewer bits" in wrong(tmp_path, draining_bits=4)
    assert "grows from fewer bits" in wrong(tmp_path, growing_from_bits=2, anchor="left")


@needs_terraform
def test_terraform_grows_in_the_stages_of_python(tmp_path: Path) -> None:
    """In the first stage the publishers' keys of fewer digits are still routed."""
    without_resources(tmp_path)
    old, new = Topology(4), Topology(6, draining_bits=4)
    call = {"source": "./module", **exports.terraform_variables(new), "growing_from_bits": 4}
    output = {"t": {"value": "${module.t.bindings}"}}
    (tmp_path / "main.tf.json").write_text(json.dumps({"module": {"t": call}, "output": output}))
    run(tmp_path, "init", "-input=false")
    run(tmp_path, "apply", "-auto-approve", "-input=false")
    found = json.loads(run(tmp_path, "output", "-json"))["t"]["value"]
    kept = {each for each in old.bindings if each.source == old.ingest}
    assert {Binding(**each) for each in found} == kept | set(new.bindings)
    assert len(found) == len(kept | set(new.bindings))


@needs_terraform
def test_terraform_computes_what_python_computes(tmp_path: Path) -> None:
    without_resources(tmp_path)
    calls, outputs = {}, {}
    for number, topology in enumerate(TOPOLOGIES):
        calls[f"t{number}"] = {"source": "./module", **exports.terraform_variables(topology)}
        outputs[f"t{number}"] = {"value": f"${{module.t{number}}}"}
    (tmp_path / "main.tf.json").write_text(json.dumps({"module": calls, "output": outputs}))
    run(tmp_path, "init", "-input=false")
    run(tmp_path, "apply", "-auto-approve", "-input=false")
    found = json.loads(run(tmp_path, "output", "-json"))
    for number, topology in enumerate(TOPOLOGIES):
        value = found[f"t{number}"]["value"]
        assert value["bits"] == topology.bits
        assert value["max_delay_seconds"] == topology.maximum * topology.unit_ms / 1000
        assert {
            (b["source"], b["destination"], b["destination_type"], b["routing_key"])
            for b in value["bindings"]
        } == {
            (b.source, b.destination, b.destination_type, b.routing_key) for b in topology.bindings
        }
        assert len(value["bindings"]) == len(topology.bindings)
        assert {name: json.loads(text) for name, text in value["queues"].items()} == {
            queue.name: dict(queue.arguments) for queue in topology.queues
        }
        assert value["exchanges"] == {
            each.name: {"type": each.type, "arguments": dict(each.arguments)}
            for each in topology.exchanges
        }
