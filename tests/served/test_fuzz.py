"""Requests made up from the description of the API: whatever comes, no defect is met."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode

from memagent.engines import ScriptedEngine
from memagent.settings import ReadSettings

EXAMPLES = 12


def test_no_request_meets_a_defect(serving: Any) -> None:
    engine = ScriptedEngine(lambda messages: "a memory", window_tokens=3000)
    served = serving(engine, settings=ReadSettings(workflow="overwrite"))
    schema = schemathesis.openapi.from_url(f"{served.address}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 14
    for operation in operations:
        for mode in GenerationMode:
            with suppress(Unsatisfiable):  # what takes no parameter cannot be asked wrongly
                _no_defect(operation.as_strategy(generation_mode=mode))


def _no_defect(cases: Any) -> None:
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def check(case: Any) -> None:
        case.call_and_validate(checks=[not_a_server_error], timeout=20)

    check()
