"""What the tests of the commands share."""

from __future__ import annotations

import pytest


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads use the workflow that scripted replies are for, unless a flag names another."""
    monkeypatch.setenv("MEMAGENT_WORKFLOW", "gated")
