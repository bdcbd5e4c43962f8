"""`memagent rollout`: one attempt at an example, through a trainer's gateway. See docs/rollouts.md."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from memagent.cli.flags import PATH, Command, with_settings, with_verbose
from memagent.cli.messages import exit_code, print_error, say_json
from memagent.errors import MemAgentError
from memagent.settings import Settings
from memagent.tasks.files import load_example
from memagent.tasks.scoring import SCORERS
from memagent.training.data import trajectory_row
from memagent.training.rewards import load_reward
from memagent.training.rollout import roll_out
from memagent.types import Trajectory

_OF_THE_GATEWAY = ("temperature", "top_p", "seed", "thinking", "thinking_tokens")
_OF_OTHER_READS = ("adapter", "cite", "discover", "dtype", "engine", "lookahead", "threads")


@click.command(cls=Command, short_help="Make one attempt at an example, for a trainer's gateway.")
@click.option("--example", type=PATH, required=True, metavar="ROW.json",
              help="a file with one example, as a JSON object")  # fmt: skip
@click.option("--reward", metavar="MODULE:FUNCTION", help="what rewards the attempt (an exact match does)")
@click.option("--scorer", type=click.Choice(list(SCORERS)), metavar="NAME",
              help=f"reward by this scorer instead: {', '.join(SCORERS)}")  # fmt: skip
@with_verbose
@with_settings(leave_out=(*_OF_THE_GATEWAY, *_OF_OTHER_READS))
def command(example: Path, reward: str | None, scorer: str | None, settings: Settings) -> int:
    """Make and reward one attempt at an example, and print it as one line of JSON.

    The endpoint at --base-url is a trainer's gateway: it decides how replies are drawn, and records them.
    """
    item, rewards = load_example(example), load_reward(reward, scorer)
    trajectory, code = Trajectory(item.id, (), ""), 0
    try:
        trajectory = asyncio.run(roll_out(item, settings, rewards))
        failure = trajectory.error
    except MemAgentError as error:
        print_error(error)
        failure, code = str(error), exit_code(error)
    say_json({**trajectory_row(trajectory), "failure": failure})
    return code
