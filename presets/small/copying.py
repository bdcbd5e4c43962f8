"""Copying before imitation: a model that starts from random weights learns to copy.

    python presets/small/copying.py

writes presets/small/copied, the model that presets/small.toml begins with; a quarter of an hour on one core.

Writing a memory takes copying. Imitation hardly teaches it: only a conversation's reply counts, a few tokens
after hundreds. So the model learns here to predict copies of random tokens, which takes copying, and every
token of the warm start's conversations. A run that is interrupted starts over.
"""

import argparse
import asyncio
import math
import random
from collections.abc import Sequence
from pathlib import Path

from memagent.training.data import load_data
from memagent.training.export import export_policy
from memagent.training.loop import local_engine
from memagent.training.optimization.learner import Learner, learning_rate
from memagent.training.optimization.policy import Policy, load_policy
from memagent.training.ranks import Ranks
from memagent.training.settings import ScheduleSettings, TrainingSettings, load_training
from memagent.training.warm_start import load_sequences
from memagent.types import TrainingSequence

HERE = Path(__file__).parent
RANDOM_START = {"model": "small/policy", "random_weights": True, "prepare": "small/start.py:look_back"}
STEPS, SEQUENCES = 1200, 64
COUNT = 2048  # examples with conversations
SCHEDULE = ScheduleSettings(learning_rate=5e-3, warmup_steps=50, decay_steps=400)
RANDOM = 0.9  # share of the sequences; the others are conversations
MIN_TOKENS, SHORT_TOKENS, MAX_TOKENS = 48, 96, 384  # of a random sequence
SHORT_STEPS = 1 / 3  # share of the steps: copying is hardly learned from long sequences at first
MIN_COPIED, MAX_COPIED = 6, 64  # tokens
GIVEN = 2  # first tokens of the copy: they tell where it continues
REPORTED = 25  # steps


def draw_copies(
    pool: Sequence[Sequence[TrainingSequence]], vocabulary: int, max_tokens: int, source: random.Random
) -> TrainingSequence:
    """A random sequence that ends with a copy, or now and then a conversation of the pool."""
    if source.random() < RANDOM:
        return with_copy(vocabulary, max_tokens, source)
    return all_tokens(source.choice(source.choice(pool)))


def all_tokens(sequence: TrainingSequence) -> TrainingSequence:
    """The same tokens, with all but the first to be predicted."""
    ids = sequence.prompt_ids + sequence.completion_ids
    return TrainingSequence(ids[:1], ids[1:])


def with_copy(vocabulary: int, max_tokens: int, source: random.Random) -> TrainingSequence:
    """Random tokens that end with a copy of some earlier ones; the copy is to be predicted.

    Its distance is random: a sequence that repeats as a whole could be predicted by counting back, which is
    no use in a document. The tokens come from a random part of the vocabulary: if that is small, as with
    digits, the previous token is not enough to tell what comes next.
    """
    several = source.sample(range(vocabulary), min(vocabulary, 2 ** source.randint(4, 10)))
    tokens = round(math.exp(source.uniform(math.log(MIN_TOKENS), math.log(max_tokens))))
    length = source.randint(MIN_COPIED, min(tokens // 2 - GIVEN, MAX_COPIED))
    around = tokens - 2 * length
    before = source.randint(0, around // 2)
    copied = source.choices(several, k=length)
    between = source.choices(several, k=source.randint(1, around - before))
    ids = (*source.choices(several, k=before), *copied, *between, *copied)
    return TrainingSequence(ids[: GIVEN - length], ids[GIVEN - length :])


def load_pool(settings: TrainingSettings, policy: Policy) -> list[list[TrainingSequence]]:
    """The warm start's conversations."""
    model = local_engine(settings, policy).model
    data = load_data(settings.data.examples, settings.seed, model.count_tokens)
    return asyncio.run(load_sequences(settings, data, policy.tokenizer, model))


def learn_to_copy(settings: TrainingSettings, steps: int, sequences: int) -> Policy:
    """Train a policy from random weights, for so many steps of so many sequences."""
    policy = load_policy(settings.policy, settings.rollout.temperature, settings.seed)
    pool = load_pool(settings, policy)
    vocabulary = policy.network.config.get_text_config().vocab_size
    learner = Learner(policy, settings.optimizer, Ranks(), SCHEDULE.betas)
    for step in range(steps):
        source = random.Random(f"{settings.seed}/copying/{step}")
        max_tokens = MAX_TOKENS if step >= SHORT_STEPS * steps else SHORT_TOKENS
        drawn = [draw_copies(pool, vocabulary, max_tokens, source) for _ in range(sequences)]
        sums = learner.fine_tune(drawn, learning_rate(SCHEDULE, step, steps))
        if (step + 1) % REPORTED == 0 or step + 1 == steps:
            print(f"step {step + 1:,} of {steps:,}: loss {sums['loss'] / sums['tokens']:.3f}", flush=True)
    return policy


def main() -> None:
    """Train, and write the model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "copied", help="a folder (presets/small/copied)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"optimizer steps ({STEPS})")
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help=f"in each step ({SEQUENCES})")
    parser.add_argument("--count", type=int, default=COUNT, help=f"examples with conversations ({COUNT})")
    parser.add_argument("--examples", nargs="+", help="of the conversations, if not those of small.toml")
    args = parser.parse_args()
    warm_start = {"count": args.count} | ({"examples": args.examples} if args.examples else {})
    changes = {"seed": args.seed, "policy": RANDOM_START, "warm_start": warm_start}
    policy = learn_to_copy(load_training(HERE.parent / "small.toml", changes), args.steps, args.sequences)
    export_policy(policy.model, policy.tokenizer, "merged", args.out)


if __name__ == "__main__":
    main()
