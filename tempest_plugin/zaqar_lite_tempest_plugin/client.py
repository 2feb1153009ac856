"""A messaging client on tempest.lib: one method a call, answers validated by their schemas."""

import json
import uuid
from typing import Any
from urllib.parse import urlencode

from tempest.lib.common import rest_client

from zaqar_lite_tempest_plugin import schemas

PATCH_TYPE = "application/openstack-messaging-v2.0-json-patch"
Document = dict[str, Any]


class MessagingClient(rest_client.RestClient):
    """Speak Zaqar v2 as one client (one Client-ID)."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.client_id = uuid.uuid4().hex

    def call(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        content_type: str = "application/json",
        **headers: str,
    ) -> tuple[Any, Any]:
        """Send a request; answer tempest's response and the parsed body (None without one)."""
        named = {
            "Client-ID": self.client_id,
            "Content-Type": content_type,
            "Accept": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        body = None if document is None else json.dumps(document)
        response, content = self.request(method, f"v2/{path}", headers=named, body=body)
        return response, json.loads(content) if content else None

    def checked(
        self,
        schema: Document,
        method: str,
        path: str,
        document: Any = None,
        **headers: str,
    ) -> Document:
        """Send a request whose answer has this schema."""
        response, body = self.call(method, path, document, **headers)
        self.validate_response(schema, response, body)
        parsed: Document = body
        return parsed

    def expect(
        self,
        status: int,
        method: str,
        path: str,
        document: Any = None,
        **headers: str,
    ) -> Any:
        """Send a request whose answer has this status and no body."""
        response, body = self.call(method, path, document, **headers)
        self.expected_success(status, response.status)
        if body is not None:
            raise AssertionError(f"{method} {path} has a body: {body!r}")
        return response

    def create_queue(self, queue: str, metadata: Document | None = None) -> None:
        """Create a queue that is not there."""
        self.expect(201, "PUT", f"queues/{queue}", metadata or {})

    def delete_queue(self, queue: str) -> None:
        """Delete a queue."""
        self.expect(204, "DELETE", f"queues/{queue}")

    def show_queue(self, queue: str) -> Document:
        """Read a queue's metadata."""
        response, body = self.call("GET", f"queues/{queue}")
        self.expected_success(200, response.status)
        metadata: Document = body
        return metadata

    def patch_queue(self, queue: str, *operations: Document) -> Document:
        """Change a queue's metadata."""
        response, body = self.call(
            "PATCH", f"queues/{queue}", list(operations), content_type=PATCH_TYPE
        )
        self.expected_success(200, response.status)
        metadata: Document = body
        return metadata

    def list_queues(self, **parameters: Any) -> Document:
        """List a page of queues."""
        return self.checked(schemas.queues, "GET", f"queues?{urlencode(parameters)}")

    def stats(self, queue: str, **parameters: Any) -> Document:
        """Count a queue's messages."""
        body = self.checked(schemas.stats, "GET", f"queues/{queue}/stats?{urlencode(parameters)}")
        counts: Document = body["messages"]
        return counts

    def post(self, queue: str, *messages: Document, **headers: str) -> list[str]:
        """Post messages; answer their ids."""
        body = self.checked(
            schemas.posted,
            "POST",
            f"queues/{queue}/messages",
            {"messages": list(messages)},
            **headers,
        )
        return [href.rsplit("/", 1)[1] for href in body["resources"]]

    def browse(self, queue: str, **parameters: Any) -> list[Document]:
        """List one page of messages, one's own too."""
        query = urlencode({"echo": "true", **parameters})
        body = self.checked(schemas.listed, "GET", f"queues/{queue}/messages?{query}")
        messages: list[Document] = body["messages"]
        return messages

    def show(self, queue: str, message_id: str, **parameters: Any) -> Document:
        """Get a message."""
        path = f"queues/{queue}/messages/{message_id}?{urlencode(parameters)}"
        return self.checked(schemas.message, "GET", path)

    def claim(
        self,
        queue: str,
        *,
        limit: int = 10,
        ttl: int = 60,
        grace: int = 60,
        **parameters: Any,
    ) -> list[Document]:
        """Claim messages; an empty list when there are none."""
        query = urlencode({"limit": limit, **parameters})
        response, body = self.call(
            "POST", f"queues/{queue}/claims?{query}", {"ttl": ttl, "grace": grace}
        )
        if response.status == 204:
            return []
        self.validate_response(schemas.claimed, response, body)
        messages: list[Document] = body["messages"]
        return messages

    def release(self, queue: str, claim_id: str) -> None:
        """Release a claim."""
        self.expect(204, "DELETE", f"queues/{queue}/claims/{claim_id}")


def claim_id_of(message: Document) -> str:
    """The claim id in a claimed message's href."""
    href: str = message["href"]
    return href.rsplit("=", 1)[1]
