"""Apply a topology to a broker over its management API, which can also list its entities."""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Self

import httpx

from zaqar_lite.domain.errors import Conflict, Forbidden, Invalid, NotFound, Unavailable
from zaqar_lite.rabbitmq.drift import Call, Finding, Kind, Snapshot, compare, path
from zaqar_lite.rabbitmq.topology import Topology

SETTLE = 11.0  # seconds; a queue counts every five, and its figures are gathered every five


class Management:
    """The management API of one virtual host.

    Args:
        url: for example `http://user:password@127.0.0.1:15672`.
        vhost: the virtual host; it must exist.
    """

    def __init__(self, url: str, *, vhost: str = "/") -> None:
        self.vhost = vhost
        self._http = httpx.Client(base_url=url, timeout=30.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def verify(self, topology: Topology) -> list[Finding]:
        """Return all differences from the topology; those with `is_drift` make delays wrong.

        Raises:
            Unavailable: the API does not answer.
            Forbidden: the user may not read the virtual host.
            NotFound: there is no such virtual host.
        """
        return compare(topology, self._snapshot())

    def apply(
        self,
        topology: Topology,
        *,
        prune: bool = False,
        dry_run: bool = False,
        settle: float = SETTLE,
    ) -> list[Finding]:
        """Create what is missing and, with `prune`, delete what is extra; return what was changed.

        A queue is only ever deleted empty: its bindings go first, then the broker's counts are
        given `settle` seconds to become accurate.

        Raises:
            Conflict: an entity exists with other properties, or the broker's topology has more bits
                and is not to be pruned (nothing was changed), or messages wait in a queue to be
                pruned (the queue stays).
        """
        findings = self.verify(topology)
        if wrong := [each for each in findings if each.kind is Kind.DIFFERENT]:
            raise Conflict("; ".join(f"{each.subject}: {each.detail}" for each in wrong))
        larger = f"exchange {topology.level_exchange(topology.bits)}"
        if not prune and larger in {each.subject for each in findings}:
            raise topology.too_small()
        kinds = {Kind.MISSING, Kind.EXTRA} if prune else {Kind.MISSING}
        chosen = [each for each in findings if each.kind in kinds]
        if not dry_run:
            self._mend(each for each in chosen if each.kind is Kind.MISSING)
            self._prune([each for each in chosen if each.kind is Kind.EXTRA], settle)
        return chosen

    def _prune(self, extra: list[Finding], settle: float) -> None:
        """Delete bindings, then queues that are empty, then exchanges."""
        self._mend(extra, "binding")
        if doomed := {each.subject for each in extra if each.subject.startswith("queue ")}:
            time.sleep(settle)
            full = [
                queue["name"]
                for queue in self._list("queues", self.vhost)
                if f"queue {queue['name']}" in doomed
                and (queue.get("messages") or queue.get("messages_dlx"))
            ]
            if full:
                raise Conflict(f"messages still wait in {', '.join(full)}; prune again later")
        self._mend(extra, "queue")
        self._mend(extra, "exchange")

    def _mend(self, findings: Iterable[Finding], word: str = "") -> None:
        """Make the calls that mend findings: all, or those whose subject begins with a word."""
        for each in findings:
            if each.mend is not None and each.subject.startswith(word):
                self._send(each.mend)

    def _snapshot(self) -> Snapshot:
        kinds = ("exchanges", "queues", "bindings", "policies", "operator-policies", "consumers")
        listed = {kind.replace("-", "_"): self._list(kind, self.vhost) for kind in kinds}
        flags: list[dict[str, Any]] = []
        with suppress(Forbidden, NotFound):  # administrators may read it, and old brokers lack it
            flags = self._list("feature-flags")
        return Snapshot(self.vhost, **listed, feature_flags=flags)

    def _list(self, *words: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._send(Call("GET", path(*words))).json()
        return listed

    def _send(self, call: Call) -> httpx.Response:
        try:
            # The path is built quoted; httpx must not unquote `%2F`, the default virtual host.
            answer = self._http.request(call.method, call.path, json=call.body)
        except httpx.HTTPError as error:
            where = self._http.base_url.copy_with(username=None, password=None)
            raise Unavailable(f"no answer from the management API at {where}: {error}") from error
        is_gone = call.method == "DELETE" and answer.status_code == 404  # already
        if answer.is_success or is_gone:
            return answer
        text = f"{call.method} {call.path}: {answer.status_code} {answer.text[:300]}"
        if answer.status_code == 401:
            text = f"the management API refuses the user or the password (--management-url): {text}"
        if answer.status_code == 404 and call.method == "GET":
            text = f"the broker has no virtual host {self.vhost!r}, or no such page: {text}"
        kinds = {401: Forbidden, 403: Forbidden, 404: NotFound, 400: Invalid, 405: Invalid}
        raise kinds.get(answer.status_code, Unavailable)(text)
