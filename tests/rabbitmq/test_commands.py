"""`zaqar-lite delay ...` as its users call it: words in, text and exit code out."""

import argparse
import json
import sys
from pathlib import Path

import pytest

import zaqar_lite.rabbitmq
from tests.rabbitmq.conftest import Host
from zaqar_lite.rabbitmq.commands import AMQP_URL, add_commands
from zaqar_lite.rabbitmq.topology import Topology


def delay(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    try:
        arguments = parser.parse_args(["delay", *words])
    except SystemExit as left:  # argparse's way to refuse
        return int(left.code or 0)
    code = arguments.run(arguments)
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("explain", "16"), "15 s"),
        (("plan", "--target", "x"), "DESTINATION=QUEUE"),
        (("plan", "--prefix", "amq.x"), "prefix"),
        (("publish", "q", "{", "--dry-run"), "not JSON"),
        (("publish", "q", "1", "--delay", "16", "--dry-run"), "15 s"),
        (("publish", "q", "1", "--ttl", "100ms", "--dry-run"), "whole seconds"),
        (("relay", "--destination", "nobody", "--dry-run"), "no destination"),
        (("apply", "--via", "amqp", "--prune"), "management"),
        (("publish", "a b", "1", "--dry-run"), "queue's name"),
        (("publish", "q", "1", "--ttl", "1", "--dry-run"), "a ttl is 60"),
        (("publish", "q", "1", "--message-id", "", "--dry-run"), "message id"),
        (("relay", "--signed", "/no/such/file"), "No such file"),
        (("relay", "--os-cloud", "no-such-cloud"), "no-such-cloud"),
        (("relay", "--zaqar-url", "localhost:8888"), "not a server's address"),
        (("apply", "--via", "amqp", "--amqp-url", "amqp://u:hush@127.0.0.1:99999"), "--amqp-url"),
        (("verify", "--management-url", "@/no/such/file"), "--management-url"),
        (("relay", "--prefetch", "65536"), "--prefetch"),
        (("relay", "--metrics-port", "65536"), "--metrics-port"),
        (("relay", "--client-id", "nobody"), "UUID"),
        (("relay", "--context", "nobody"), "no context"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_exits_with_2_and_says_why(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert delay(*words) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert "hush" not in said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("publish", "q", "1", "--message-id", "m"), "publish m to delay.ingest with key zaqar"),
        (("relay",), "would relay queue delay.zaqar to http://127.0.0.1:8888"),
        (("apply", "--amqp-url", AMQP_URL), "would declare 7 exchanges"),
        (("plan", "--max-delay", "15"), "7 exchanges, 7 queues, 17 bindings"),
        (("explain", "0"), "delay.ingest -> delay.done -> queue delay.zaqar"),
    ],
    ids=lambda value: value[0],
)
def test_a_dry_run_needs_no_broker(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pure = words[0] in {"plan", "explain"}
    assert delay(*words, *(() if pure else ("--dry-run",))) == 0
    assert text in capsys.readouterr().out


def test_without_the_extra_the_pure_commands_work_and_the_others_name_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("zaqar_lite.rabbitmq.")]:
        if name.rpartition(".")[2] in {"amqp", "broker_commands", "publisher", "relay"}:
            monkeypatch.delitem(sys.modules, name)
            monkeypatch.delattr(zaqar_lite.rabbitmq, name.rpartition(".")[2])
    monkeypatch.setitem(sys.modules, "aio_pika", None)
    assert delay("explain", "13") == 0
    assert delay("relay") == 2
    assert "pip install 'zaqar-lite[rabbitmq]'" in capsys.readouterr().err


def test_no_broker_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert delay("verify", "--management-url", "http://user:hush@127.0.0.1:1") == 1
    assert delay("remove", "--amqp-url", "amqp://user:hush@127.0.0.1:1") == 1
    text = capsys.readouterr().err
    assert "127.0.0.1:1" in text
    assert "hush" not in text


def test_export_writes_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology = Topology(4)
    assert delay("export", "definitions") == 0
    exported = json.loads(capsys.readouterr().out)
    assert len(exported["bindings"]) == len(topology.bindings)
    target = tmp_path / "picture"
    assert delay("export", "mermaid", "--output", str(target), "--dry-run") == 0
    assert not target.exists()
    assert delay("export", "mermaid", "--output", str(target)) == 0
    lines = target.read_text().splitlines()
    # Bindings, one dead-lettering for each level and for the target, alternates but parking's.
    edges = len(topology.bindings) + 5 + len(topology.exchanges) - 1
    assert sum("-->" in line or "==>" in line or "-.->" in line for line in lines) == edges
    assert "  q2 ==> e0" in lines  # the target's dead letters are parked
    assert '  q3 ==>|"after 8000 ms"| e3' in lines
    module = tmp_path / "module"
    assert delay("export", "terraform", "--output", str(module)) == 0
    assert {each.name for each in module.iterdir()} == {
        *("main.tf", "variables.tf", "outputs.tf", "versions.tf", "README.md"),
        "terraform.tfvars.json",
    }


def test_a_password_can_stay_in_a_file(
    tmp_path: Path, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "url"
    secret.write_text(host.management_url + "\n")
    api = ["--management-url", f"@{secret}", "--vhost", host.name]
    assert delay("verify", *api) == 2
    assert delay("apply", *api, "--dry-run") == 0
    assert "31 changes, none made" in capsys.readouterr().out
    assert delay("verify", *api) == 2
    assert delay("apply", *api) == 0
    assert "+ exchange delay.ingest" in capsys.readouterr().out
    assert delay("verify", *api) == 0
    assert delay("verify", *api, "--bits", "5", "--json") == 2
    findings = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert any(each["subject"] == "queue delay.16" and each["drift"] for each in findings)
    assert delay("remove", "--amqp-url", host.amqp_url, "--dry-run") == 0
    assert delay("verify", *api) == 0
    for says in ("removed 7 exchanges", "nothing to remove: the broker has no topology 'delay'"):
        assert delay("remove", "--amqp-url", host.amqp_url) == 0
        assert says in capsys.readouterr().out
    assert delay("verify", *api) == 2
