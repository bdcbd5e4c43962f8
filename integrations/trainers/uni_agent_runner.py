"""A runner for Uni-Agent: one read, whose calls go through its gateway's session, and its reward.

`runner_fqn` names `read`. A sample's `tools_kwargs` hold its `example`, as a JSON object; `runner_kwargs`
may hold `settings`, memagent's by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from memagent import EngineSettings, Settings, load_settings
from memagent.tasks.files import example_of
from memagent.training.rollout import roll_out


async def read(
    *, session: Any, tools_kwargs: Mapping[str, Any], settings: Mapping[str, Any] | None = None, **_: Any
) -> None:
    """Make one attempt, and report its reward to the session. Raises `EngineError` if the gateway fails."""
    example = example_of(tools_kwargs["example"], Path(str(session.session_id)))
    engine = EngineSettings(base_url=session.base_url, api_key="EMPTY", model="policy")
    trajectory = await roll_out(example, Settings(engine, load_settings(settings).read))
    reward = {"reward_info": {"reward": trajectory.reward}}
    async with httpx2.AsyncClient() as client:
        (await client.post(session.reward_info_url, json=reward)).raise_for_status()
