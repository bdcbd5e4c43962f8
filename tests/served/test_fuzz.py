"""Requests made up from the description of the API: whatever comes, no defect is met."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import status_code_conformance

from memagent.engines import ScriptedEngine
from memagent.server.limits import read_keys
from memagent.settings import ReadSettings

EXAMPLES = 12
KEY = "a-key-of-more-than-sixteen"


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, KEY])
def test_no_request_meets_a_defect_or_an_undocumented_status(
    serving: Any, tmp_path: Path, key: str | None
) -> None:
    """Without keys, and where a key is wanted and sent."""
    (tmp_path / "keys").write_text(KEY)
    engine = ScriptedEngine(lambda messages: "a memory", window_tokens=3000)
    keys = read_keys(tmp_path / "keys" if key else None)
    served = serving(engine, settings=ReadSettings(workflow="overwrite"), keys=keys)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    schema = schemathesis.openapi.from_url(f"{served.address}/openapi.json", headers=headers)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 14
    for operation in operations:
        for mode in GenerationMode:
            with suppress(Unsatisfiable):  # what takes no parameter cannot be asked wrongly
                _check(operation.as_strategy(generation_mode=mode), headers)


def _check(cases: Any, headers: dict[str, str]) -> None:
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def check(case: Any) -> None:
        case.call_and_validate(
            checks=[not_a_server_error, status_code_conformance], headers=headers, timeout=20
        )

    check()
