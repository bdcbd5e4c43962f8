"""An agent for Agent Lightning 1.0: one read, whose calls go through its gateway, and its reward.

Its controller starts this class for each rollout: `agent_class` is `lightning_agent:ReadingAgent`, and
`env_map` sets EXAMPLE to `input`, an example as a JSON object. MEMAGENT_WORKFLOW and the like say how
documents are read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx2

from memagent import EngineSettings, Settings, load_settings
from memagent.tasks.files import example_of
from memagent.training.rollout import roll_out


class ReadingAgent:
    """Makes one attempt at the example in the environment."""

    async def run(self) -> None:
        """Read, and report the reward. Raises `EngineError` if the gateway fails: the rollout has failed."""
        example = example_of(json.loads(os.environ["EXAMPLE"]), Path("EXAMPLE"))
        url, key = os.environ["AGL_OPENAI_BASE_URL"], os.environ["AGL_KEY"]
        engine = EngineSettings(base_url=url, api_key=key or None, model="policy")
        trajectory = await roll_out(example, Settings(engine, load_settings().read))
        event = {"event_type": "reward", "data": {"value": trajectory.reward}}
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as client:
            (await client.post(os.environ["AGL_EVENT_URL"], json=event)).raise_for_status()
