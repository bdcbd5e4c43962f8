"""What calls have spent: added up, and written among the fields of what holds it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from memagent.settings import ReadSettings
from memagent.types import Spent, Usage, flatten, unflatten


@dataclass(frozen=True, slots=True)
class Holder:
    name: str
    spent: Spent
    seconds: float = 0.0


def test_what_is_spent_adds_up() -> None:
    prices = ReadSettings(prompt_price=2.0, cached_price=1.0, completion_price=4.0)
    one = prices.price(Usage(prompt_tokens=100, completion_tokens=10, cached_tokens=60))
    assert one == Spent(1, 100, 60, 10, pytest.approx((40 * 2 + 60 * 1 + 10 * 4) / 1e6))
    both = one + ReadSettings().price(Usage(1, 2, estimated=True))
    assert both == Spent(2, 101, 60, 12, one.cost, estimated=True)
    assert (both.tokens, both.usage) == (113, Usage(101, 12, 60, estimated=True))
    assert (Spent() + Spent()).cost is None, "without prices, nothing is known of the cost"


def test_it_is_written_among_the_other_fields_and_read_back() -> None:
    held = Holder("a", Spent(calls=3, prompt_tokens=7, cost=0.5), 1.5)
    written = flatten(held)
    assert list(written) == [
        "name", "calls", "prompt_tokens", "cached_tokens", "completion_tokens", "cost", "estimated", "seconds"
    ]  # fmt: skip
    values = unflatten(written)
    assert Holder(**values | {"spent": Spent(**values["spent"])}) == held
