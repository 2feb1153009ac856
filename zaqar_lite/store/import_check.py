"""What an import checks queues by: it takes what the server would take."""

import json
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from zaqar_lite.api import documents
from zaqar_lite.api.request import Refused
from zaqar_lite.domain import metadata as rules
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import QueueRef, StoreOptions
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.settings import Settings
from zaqar_lite.storage.registry import create_stores
from zaqar_lite.storage.sql.database import Database


class Trial(NamedTuple):
    """The server's own service of queues, over a copy of a store's queues in memory."""

    queues: Queues
    limits: Limits

    @classmethod
    async def beside(cls, db: Database, settings: Settings) -> Self:
        """Copy the queues of a store, for a server of these settings."""
        messages, management = create_stores("memory://", clock=Clock(), options=StoreOptions())
        for *ref, metadata in db.execute("SELECT project, name, metadata FROM queue WHERE version"):
            known = json.loads(metadata)
            await management.create_queue(QueueRef(*ref), known, max_queues=sys.maxsize)
        limits = settings.limits()
        policies = Policies(management, limits, checked=True)
        encrypts = settings.encryption_key_file is not None
        return cls(Queues(management, messages, policies, limits, encrypts=encrypts), limits)

    async def make(self, queue: QueueRef, metadata: Mapping[str, Any]) -> None:
        """Make a queue as `PUT` would. Raises Invalid, LimitReached: the server refuses it."""
        rules.check_size(metadata, self.limits)
        try:  # what is asked of every document: its depth, and numbers of 64 bits
            documents.parse_object(json.dumps(metadata, ensure_ascii=False).encode())
        except Refused as exc:
            raise Invalid(exc.description or exc.title) from exc
        await self.queues.create(queue, rules.visible(metadata))
