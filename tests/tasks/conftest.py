"""The tokenizer that documents are measured with."""

from __future__ import annotations

import pytest

from memagent.types import TokenCounter
from tasks.oracles import bpe


@pytest.fixture(scope="session")
def count(tmp_path_factory: pytest.TempPathFactory) -> TokenCounter:
    """A real tokenizer's counter."""
    return bpe(tmp_path_factory.mktemp("tokenizer"))
