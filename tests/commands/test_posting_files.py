"""Files of messages: posted, set aside, and in constant memory."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.commands.running import ZAQAR, Run
from tests.server import ServerProcess
from zaqar_lite.client import Client


def test_json_lines_are_posted_byte_for_byte(run: Run, queue: str, client: Client) -> None:
    lines = b'{"n": 1.00}\n\n[1, 2]\r\n"three"'
    code, (summary,) = run("message", "post", queue, "--file", "-", stdin=lines)
    assert code == 0
    assert (summary["messages"], summary["rejected"]) == (3, 0)
    bodies = [message.body for message in client.list_messages(queue, raw=True)]
    assert bodies == [b'{"n": 1.00}', b"[1, 2]", b'"three"']


def test_what_is_refused_goes_to_a_file_and_the_rest_is_posted(
    run: Run, queue: str, tmp_path: Path
) -> None:
    source, rejects = tmp_path / "in.jsonl", tmp_path / "rejects.jsonl"
    lines = [json.dumps({"n": number}) for number in range(500)]
    lines[123] = "{broken"
    lines[499] = "also broken"
    source.write_text("\n".join(lines), encoding="utf-8")
    assert run("message", "post", queue, "--file", str(source))[0] == 1
    run("queue", "purge", queue, "--yes")
    words = ("message", "post", queue, "--file", str(source), "--rejects", str(rejects))
    code, (summary,) = run(*words, "--batch-size", "64")
    assert code == 1
    assert (summary["messages"], summary["rejected"]) == (498, 2)
    found = [json.loads(line) for line in rejects.read_text(encoding="utf-8").splitlines()]
    assert [(line["record"], line["input"]) for line in found] == [
        (124, "{broken"),
        (500, "also broken"),
    ]
    for line, column in zip(found, (2, 1), strict=True):  # of the line, not of the request
        assert f"Invalid request body: it is not JSON at column {column}: " in line["reason"]
    assert run("queue", "stats", queue)[1][0]["total"] == 498


def test_a_file_under_the_same_run_name_is_stored_once(
    run: Run, queue: str, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("1\n1\n\n2\n", encoding="utf-8")
    for _ in range(2):
        run("message", "post", queue, "--file", str(source), "--run", "july", "--batch-size", "2")
    assert run("queue", "stats", queue)[1][0]["total"] == 3
    words = ("message", "post", queue, "--file", str(source), "--rejects", str(source))
    assert run(*words)[0] == 2
    assert source.read_text(encoding="utf-8") == "1\n1\n\n2\n"


def test_a_csv_row_with_a_bad_number_is_set_aside_under_its_own_number(
    run: Run, queue: str, tmp_path: Path, client: Client
) -> None:
    rows = b"body,ttl,deliver_at\na,60,\nb,soon,\nc,,\nd,,some day\ne,,2000-01-01T00:00:00Z\n"
    words = ("message", "post", queue, "--file", "-", "--format", "csv")
    rejects = tmp_path / "rejects"
    code, (summary,) = run(*words, "--rejects", str(rejects), stdin=rows)
    assert (code, summary["messages"], summary["rejected"]) == (1, 3, 2)
    lines = [json.loads(line) for line in rejects.read_text(encoding="utf-8").splitlines()]
    assert [line["record"] for line in lines] == [2, 4]
    assert "'soon'" in lines[0]["reason"]
    assert "some day" in lines[1]["reason"]
    assert [m.body for m in client.list_messages(queue)] == ["a", "c", "e"]
    assert run(*words, stdin=rows) == (2, [])
    assert run(*words, stdin=b"body\n\xff\n") == (2, [])
    assert "- is not CSV in UTF-8" in run.said
    # A comma without quotes would cut a body, and half a line has none.
    for line in (b"60,Hello, world", b"60"):
        assert run(*words, stdin=b"ttl,body\n60,a\n" + line) == (2, [])
        assert "line 3 has not the fields that the header names" in run.said
    assert run(*words, stdin=b"body\n" + b"x" * 200_000)[1][0]["messages"] == 1
    assert run(*words, stdin=b"body\n" + b"x" * (1 << 21)) == (2, [])
    assert "a line of the table has more than 1048576 characters" in run.said


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_has_a_body_column_and_understands_others(
    run: Run, queue: str, tmp_path: Path, client: Client, end: str
) -> None:
    run("queue", "create", queue, "--delay", "60")
    source = tmp_path / "in.csv"
    table = (
        'text,delay,ttl,idempotency_key\n"a, ""quoted""\nline",0,120,k1\nplain,,,k2\nplain,,,k2\n'
    )
    source.write_bytes(table.replace("\n", end).encode())
    words = ("message", "post", queue, "--file", str(source))
    assert run(*words)[0] == 2
    dry = run(*words, "--body-column", "text", "--dry-run")
    assert dry == (0, [{"queue": queue, "messages": 3, "dry_run": True}])
    assert run(*words, "--body-column", "text", "--group", "import")[0] == 0
    ready, delayed = client.list_messages(queue, include_delayed=True, details=True)
    assert (ready.body, ready.ttl) == (f'a, "quoted"{end}line', 120)
    assert (ready.group, delayed.group) == ("import", "import")
    assert delayed.body == "plain"
    assert client.stats(queue).delayed == 1


@pytest.mark.filterwarnings("ignore:Sending a large body")  # it is refused by its size
def test_lines_of_text_are_strings(run: Run, queue: str, tmp_path: Path, client: Client) -> None:
    lines = "call Ada \r\n\n  1\n{broken\ngrün".encode()
    words = ("message", "post", queue, "--file", "-", "--format", "text")
    code, (summary,) = run(*words, "--ttl", "120", "--group", "g", stdin=lines)
    assert (code, summary["messages"]) == (0, 4)
    listed = list(client.list_messages(queue, details=True))
    found = [(message.body, message.ttl, message.group) for message in listed]
    assert found == [(body, 120, "g") for body in ("call Ada ", "  1", "{broken", "grün")]
    rejects = tmp_path / "rejects"
    longest = b"good\n\xff\nbetter\n" + b"x" * (1 << 21)
    code, (summary,) = run(*words, "--rejects", str(rejects), stdin=longest)
    assert (code, summary["messages"], summary["rejected"]) == (1, 2, 2)
    refused = [json.loads(line) for line in rejects.read_text(encoding="utf-8").splitlines()]
    assert [line["record"] for line in refused] == [2, 4]
    assert len(refused[1]["input"]) <= (1 << 20) + 2
    assert run(*words, "--run", "once", stdin=b"a\nb")[1][0]["messages"] == 2
    assert run(*words, "--run", "once", stdin=b"a\nb")[1][0]["duplicates"] == 2
    assert run(*words[:-2], "--text", stdin=b"{no json")[0] == 0


@pytest.mark.parametrize("line", [b"call Ada", b"{broken", b"a,b,c", b"\xff\xfe"])
def test_what_was_stored_before_an_end_is_told_and_so_are_the_other_formats(
    run: Run, queue: str, line: bytes
) -> None:
    words = ("message", "post", queue, "--file", "-", "--in-flight", "1")
    assert run(*words, stdin=b"1\n" * 250 + line)[0] == 1
    for said in ("Record 251 was refused", "250 messages were stored"):
        assert said in run.said
    assert "--format text" in run.said
    assert "--format csv" in run.said
    assert run(*words, stdin=b"[" * 600 + b"]" * 600)[0] == 1
    assert "nested deeper than 512" in run.said
    assert "not JSON" not in run.said
    assert "--format" not in run.said


MESSAGES = int(os.environ.get("ZAQAR_TEST_BULK_MESSAGES", "200000"))


def write(path: Path, count: int) -> None:
    with path.open("w", encoding="ascii") as file:
        for number in range(count):
            file.write(f'{{"n": {number}, "text": "{"x" * 170}"}}\n')


def post(server: ServerProcess, queue: str, path: Path) -> int:
    """Post a file; return the most memory that it took, in KiB."""
    words = [*ZAQAR, "message", "post", queue, "--file", str(path), "--url", server.url]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss


@pytest.mark.slow
def test_a_file_is_posted_in_constant_memory(server: ServerProcess, tmp_path: Path) -> None:
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    write(small, MESSAGES // 10)
    write(large, MESSAGES)
    little = post(server, "small", small)
    assert post(server, "large", large) - little < 8 * 1024
    with Client(server.url) as client:
        assert client.stats("large").total == MESSAGES
