"""Short names for the types of the fixtures that most tests take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server import Server

Serve = Callable[..., Server]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
