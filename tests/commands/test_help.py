"""The help of each command: examples that work, and the variables beside their options."""

import argparse
import functools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.server import ServerProcess
from tests.services.process import run_program
from zaqar_lite import cli
from zaqar_lite.client import Client, QueueOptions
from zaqar_lite.commands import examples
from zaqar_lite.commands.parsers import Parser

ELSEWHERE = {
    *("serve", "bench", "key", "quota", "pool", "flavor", "data-key", "delay", "store", "listen"),
    *("subscription verify", "queue history"),
}
"""What needs another server or store, a broker, or a request that was received: only parsed."""


@functools.cache
def the_parser() -> Parser:
    """Return the parser with all commands."""
    parser = Parser(prog="zaqar-lite")
    subparsers = parser.add_subparsers(dest="command")
    for module in dict.fromkeys(one.module for one in cli.COMMANDS):
        import_module(module).add_commands(subparsers)
    return parser


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the commands that do something."""
    nouns = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not nouns:
        yield parser
    for noun in nouns:
        for one in noun.choices.values():
            yield from leaves(one)


def test_every_command_has_an_example_in_its_help() -> None:
    commands = list(leaves(the_parser()))
    assert len(commands) > 80
    without = [one.prog for one in commands if f"\n  {one.prog}" not in one.format_help()]
    assert without == []
    assert "zaqar-lite watch" in the_parser().format_help()
    progs = sorted((one.prog for one in commands), key=len, reverse=True)
    for line in examples.lines():
        assert any(line == prog or line.startswith(f"{prog} ") for prog in progs), line


@pytest.mark.parametrize("line", examples.lines())
def test_an_example_is_what_its_command_takes(line: str) -> None:
    _, *words = shlex.split(line)
    assert the_parser().parse_args(cli.options_last(words)).command == words[0]


def test_the_guide_lists_every_noun_with_its_verbs() -> None:
    guide = Path(__file__).parents[2] / "api-ref" / "source" / "command-line.rst"
    rows = re.findall(r"^   \* - ``(\S+)``\n     - ``(.+)``$", guide.read_text(), re.MULTILINE)
    listed = {noun: set(verbs.split()) for noun, verbs in rows}
    progs = [one.prog.split()[1:] for one in leaves(the_parser())]
    nouns = {noun: set[str]() for noun in cli.NOUNS}
    for noun, *verb in progs:
        nouns.get(noun, set()).update(verb)
    assert listed == nouns


def first_of(printed: str, name: str) -> str:
    """Return the field of the first JSON line."""
    found: str = json.loads(printed.splitlines()[0])[name]
    return found


def test_the_examples_run(
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZAQAR_LITE_URL", server.url)
    monkeypatch.setenv("ZAQAR_LITE_PROJECT", "examples")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "queues.yaml").write_text("queues: {orders: {max_failures: 5}}")
    (tmp_path / "orders.jsonl").write_text('{"order": 3}\n' * 5)
    with Client(server.url, project="examples") as client:
        known: dict[str, str] = {}

        def prepare(line: str) -> str:
            """Give each word in capitals what it stands for."""
            if " ID" in line and "reminders" in line:
                client.ensure_queue("reminders", QueueOptions(delay=600))
                known["ID"] = client.post("reminders", "call Grace")
            elif "CLAIM" in line:
                client.post("orders", {"order": 4})
                held = client.create_claim("orders", limit=1)
                assert held is not None
                known.update(ID=held.messages[0].id, CLAIM=held.id)
            elif " ID" in line:
                known["ID"] = client.post("orders", {"order": 5})
            if "LETTER" in line:
                known["LETTER"] = next(client.list_dead_letters("failed")).id
            if "DELIVERY" in line:
                known["DELIVERY"] = client.post("orders", {"order": 6})
            return " ".join(known.get(word, word) for word in line.split(" "))

        for line in examples.lines():
            _, noun, *rest = shlex.split(line)
            if noun in ELSEWHERE or f"{noun} {rest[0] if rest else ''}" in ELSEWHERE:
                continue
            _, *words = shlex.split(prepare(line))
            code, printed = cli.main(words), capsys.readouterr()
            fails = line.startswith("zaqar-lite subscription ping")  # nobody receives
            assert code == int(fails), (line, printed.err)
            if line.startswith("zaqar-lite subscription create"):
                known["SUBSCRIPTION"] = first_of(printed.out, "id")
            elif line.startswith("zaqar-lite topic subscribe"):
                known["TOPIC_SUBSCRIPTION"] = first_of(printed.out, "id")


@pytest.mark.parametrize("line", ["delay plan", "delay export", "delay explain"])
def test_the_examples_of_delays_run_without_a_broker(line: str) -> None:
    (example,) = examples.of(f"zaqar-lite {line}")
    words = shlex.split(example)[1:]
    run_program([sys.executable, "-m", "zaqar_lite", *words], check=True)
