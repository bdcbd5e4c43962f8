"""Starting reads on a server, and their events."""

from __future__ import annotations

import json
from typing import Any

from server import facts_document

QUESTION = "What are all the facts?"


def parse_events(lines: Any) -> list[tuple[str, Any, str | None]]:
    """The events of a stream: name, data, id."""
    parsed_events = []
    for block in "\n".join(lines).strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        parsed_events.append((fields["event"], json.loads(fields["data"]), fields.get("id")))
    return parsed_events


def events(client: Any, read: str, **options: Any) -> list[tuple[str, Any, str | None]]:
    """All events of a read, to its end."""
    with client.stream("GET", f"/v1/reads/{read}/events", **options) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        return parse_events(reply.iter_lines())


def start(client: Any, **values: Any) -> str:
    """Start a read; returns its id."""
    reply = client.post("/v1/reads", json={"problem": QUESTION, "document": facts_document(12)} | values)
    assert reply.status_code == 201, reply.text
    read: str = reply.json()["id"]
    return read
