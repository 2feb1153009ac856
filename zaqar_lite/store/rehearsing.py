"""What an import checks queues by: it takes what the server would take."""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zaqar_lite.api import documents
from zaqar_lite.api.request import Refused
from zaqar_lite.domain import metadata as rules
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.models import QueueRecord, QueueRef, StoreOptions
from zaqar_lite.server.loading import load
from zaqar_lite.service.policy import Policies
from zaqar_lite.service.queues import Queues
from zaqar_lite.storage.base import MessageStore
from zaqar_lite.storage.registry import create_stores
from zaqar_lite.store.transfer import MakeQueue, Rehearse


def rehearsal(config: Path | None) -> Rehearse:
    """Make queues as the server of these settings would, in memory, to see which it refuses.

    Raises:
        ConfigurationError: the settings are wrong.
    """
    # The address is no matter of an import, which listens nowhere.
    settings = load(environment=os.environ, config=config, overrides={"host": "localhost"})
    limits = settings.limits()

    async def rehearse(messages: MessageStore, stored: Iterable[QueueRecord]) -> MakeQueue:
        _, management = create_stores("memory://", clock=Clock(), options=StoreOptions())
        for record in stored:
            await management.create_queue(record.queue, record.metadata, max_queues=sys.maxsize)
        queues = Queues(management, messages, Policies(management, limits, checked=True), limits)

        async def make(queue: QueueRef, metadata: Mapping[str, Any]) -> None:
            rules.check_size(metadata, limits)
            _check_document(metadata)
            await queues.create(queue, metadata)

        return make

    return rehearse


def _check_document(metadata: Mapping[str, Any]) -> None:
    """Check what the server asks of every document: its depth, and numbers of 64 bits."""
    try:
        documents.parse_object(json.dumps(metadata, ensure_ascii=False).encode())
    except Refused as exc:
        raise Invalid(exc.description or exc.title) from exc
