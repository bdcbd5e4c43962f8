"""What the tests of the commands share."""

from __future__ import annotations

import pytest


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads use the workflow whose replies scripts and the server of facts give, unless a flag names another."""
    monkeypatch.setenv("MEMAGENT_WORKFLOW", "gated")
