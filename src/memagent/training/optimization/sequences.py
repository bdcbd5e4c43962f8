"""From trajectories to model inputs: rows within a token budget, laid out without waste.

Three layouts give the same numbers. "padded" has one sequence per row, padded to the longest. "packed" puts
all sequences of a micro-batch into one row. "shared" also computes a common prefix only once: all attempts of
a group read the same chunk, which comes first in their prompts. Both "packed" and "shared" compute identical
sequences once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from memagent.engines.torch.prefill import group_by_beginning, pad_left
from memagent.errors import TrainingError
from memagent.training.optimization.objective import group_advantages
from memagent.training.settings import Layout, LossSettings
from memagent.types import Group, TrainingSequence, Trajectory

_NO_IDS = "{}: the engine gave no {}, which training needs: vLLM returns them from 0.10.2 on"
_Content = tuple[tuple[int, ...], tuple[int, ...]]
_UNEVEN = 1.25  # attention (only) pads the branches of a tree to the longest


@dataclass(frozen=True, slots=True)
class Tree:
    """Sequences that begin with the same `shared` tokens (0: they only have similar lengths)."""

    shared: int
    branches: tuple[TrainingSequence, ...]

    @property
    def tokens(self) -> int:
        """How many tokens are computed: the prefix once, and each distinct branch's own tokens."""
        lengths = {_content(branch): _length(branch) for branch in self.branches}
        return self.shared + sum(length - self.shared for length in lengths.values())


@dataclass(frozen=True, slots=True)
class TreeIndex:
    """How a tree lies in its row, after the trees before it: `shared` tokens, then those of its branches.

    `rows` `(branches, tokens)` holds the place of each distinct branch's tokens among those of all branches,
    the last one repeated as padding. `own` selects the entries of the flattened `rows` that are not padding,
    in the row's order.
    """

    shared: int
    rows: torch.Tensor
    own: torch.Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch.

    `keep` is the model's `logits_to_keep`; `select` picks the completion tokens from those logits. The flat
    tensors have an entry for each completion token of the batch, all in the same order.
    """

    input_ids: torch.Tensor  # (rows, tokens)
    position_ids: torch.Tensor  # (rows, tokens)
    attention_mask: torch.Tensor | None  # (rows, tokens), padded layout only
    trees: tuple[TreeIndex, ...] | None
    keep: int | torch.Tensor
    select: torch.Tensor  # (completion tokens,)
    targets: torch.Tensor  # (completion tokens,)
    old_logprobs: torch.Tensor  # (completion tokens,), 0 if not sampled
    advantages: torch.Tensor  # (completion tokens,)
    tokens: int
    """The tokens of all sequences; a shared prefix counts once for each."""

    def to(self, device: torch.device | str) -> Batch:
        """A copy on another device."""
        moved = {name: getattr(self, name) for name in self.__slots__}
        for name, value in moved.items():
            if isinstance(value, torch.Tensor):
                moved[name] = value.to(device)
        if self.trees is not None:
            moved["trees"] = tuple(
                TreeIndex(tree.shared, tree.rows.to(device), tree.own.to(device)) for tree in self.trees
            )
        return Batch(**moved)


def sequences_of(
    trajectory: Trajectory, advantage: float, credit: Literal["trajectory", "answer"] = "trajectory"
) -> list[TrainingSequence]:
    """One sequence for each conversation, all with the trajectory's advantage.

    With `credit` "answer", only the last conversation is trained on. Raises `TrainingError` for a
    conversation without recorded token ids, or without a log-probability for each.
    """
    conversations = trajectory.conversations if credit == "trajectory" else trajectory.conversations[-1:]
    sequences = []
    for conversation in conversations:
        completion = conversation.completion
        if not completion.prompt_ids or not completion.completion_ids:
            raise TrainingError(_NO_IDS.format(trajectory.example_id, "token ids"))
        if len(completion.logprobs) != len(completion.completion_ids):
            raise TrainingError(_NO_IDS.format(trajectory.example_id, "log-probability for each token"))
        sequences.append(
            TrainingSequence(completion.prompt_ids, completion.completion_ids, completion.logprobs, advantage)
        )
    return sequences


def group_sequences(group: Group, loss: LossSettings) -> list[TrainingSequence]:
    """Every conversation of every attempt, with its attempt's advantage in the group."""
    rewards = torch.tensor([[attempt.reward or 0.0 for attempt in group.trajectories]])
    advantages = group_advantages(rewards, loss.divide_by_std)[0].tolist()
    return [
        sequence
        for attempt, advantage in zip(group.trajectories, advantages, strict=True)
        for sequence in sequences_of(attempt, advantage, loss.credit)
    ]


def batches(sequences: Sequence[TrainingSequence], layout: Layout, budget_tokens: int) -> list[Batch]:
    """The sequences in micro-batches of at most `budget_tokens` computed tokens, but at least one sequence.

    Every sequence is in exactly one of them. The split is deterministic.
    """
    if layout == "padded":
        parts = _divide(sequences, lambda part, _: _length(part[0]) * (len(part) + 1) <= budget_tokens)
        return [_pad(part) for part in parts]
    trees = _group_by_prefix(sequences) if layout == "shared" else _group_by_length(sequences)
    return [_pack(part) for part in _fill(trees, budget_tokens)]


def _length(sequence: TrainingSequence) -> int:
    return len(sequence.prompt_ids) + len(sequence.completion_ids)


def _ids(sequence: TrainingSequence) -> tuple[int, ...]:
    return sequence.prompt_ids + sequence.completion_ids


def _content(sequence: TrainingSequence) -> _Content:
    """What determines the computation of a sequence; copies have the same."""
    return sequence.prompt_ids, sequence.completion_ids


def _divide(
    sequences: Sequence[TrainingSequence], fits: Callable[[list[TrainingSequence], TrainingSequence], bool]
) -> list[list[TrainingSequence]]:
    """The sequences, longest first, in parts: one that does not fit the part before it begins another."""
    parts: list[list[TrainingSequence]] = []
    for sequence in sorted(sequences, key=_length, reverse=True):
        if parts and fits(parts[-1], sequence):
            parts[-1].append(sequence)
        else:
            parts.append([sequence])
    return parts


def _group_by_prefix(sequences: Sequence[TrainingSequence]) -> list[Tree]:
    """A tree for each common prefix; sequences without one form trees of similar lengths."""
    trees, alone = [], []
    for shared, members in group_by_beginning([sequence.prompt_ids for sequence in sequences]):
        if len(members) > 1 and shared:
            trees.append(Tree(shared, tuple(sequences[index] for index in members)))
        else:
            alone += [sequences[index] for index in members]
    return trees + _group_by_length(alone)


def _group_by_length(sequences: Sequence[TrainingSequence]) -> list[Tree]:
    parts = _divide(sequences, lambda part, one: _length(part[0]) <= _UNEVEN * _length(one))
    return [Tree(0, tuple(part)) for part in parts]


def _fill(trees: Sequence[Tree], budget_tokens: int) -> list[list[Tree]]:
    """The trees in bins of at most `budget_tokens`; one that is too large is split, its prefix repeated."""
    pieces = [piece for tree in trees for piece in _split(tree, budget_tokens)]
    sized = [(piece.tokens, piece) for piece in pieces]
    bins: list[tuple[int, list[Tree]]] = []
    for tokens, piece in sorted(sized, key=lambda pair: pair[0], reverse=True):
        for index, (used, members) in enumerate(bins):
            if used + tokens <= budget_tokens:
                members.append(piece)
                bins[index] = (used + tokens, members)
                break
        else:
            bins.append((tokens, [piece]))
    return [members for _, members in bins]


def _split(tree: Tree, budget_tokens: int) -> list[Tree]:
    copies: dict[_Content, list[TrainingSequence]] = {}
    for branch in tree.branches:
        copies.setdefault(_content(branch), []).append(branch)
    pieces: list[list[TrainingSequence]] = [[]]
    used = tree.shared
    for branches in copies.values():
        own = _length(branches[0]) - tree.shared
        if pieces[-1] and used + own > budget_tokens:
            pieces.append([])
            used = tree.shared
        pieces[-1] += branches
        used += own
    return [Tree(tree.shared, tuple(piece)) for piece in pieces]


def _flatten(sequences: Sequence[TrainingSequence]) -> dict[str, torch.Tensor]:
    pairs = [(sequence, len(sequence.completion_ids)) for sequence in sequences]
    old = [sequence.old_logprobs or (0.0,) * count for sequence, count in pairs]
    return {
        "targets": torch.tensor([token for sequence in sequences for token in sequence.completion_ids]),
        "old_logprobs": torch.tensor([value for row in old for value in row], dtype=torch.float32),
        "advantages": torch.tensor(
            [sequence.advantage for sequence, count in pairs for _ in range(count)], dtype=torch.float32
        ),
    }


def _pad(sequences: Sequence[TrainingSequence]) -> Batch:
    """One row per sequence, padded on the left so that all completions end where the logits are kept."""
    kept = max(len(sequence.completion_ids) for sequence in sequences) + 1
    ids, mask = pad_left([_ids(sequence) for sequence in sequences], torch.device("cpu"))
    select = [
        row * kept + kept - 1 - len(sequence.completion_ids) + index
        for row, sequence in enumerate(sequences)
        for index in range(len(sequence.completion_ids))
    ]
    return Batch(
        input_ids=ids,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        attention_mask=mask,
        trees=None,
        keep=kept,
        select=torch.tensor(select),
        tokens=sum(map(_length, sequences)),
        **_flatten(sequences),
    )


def _pack(trees: Sequence[Tree]) -> Batch:
    """All trees in one row: each prefix, then the distinct branches' own tokens."""
    ids: list[int] = []
    positions: list[int] = []
    keep: list[int] = []
    select: list[int] = []
    index: list[TreeIndex] = []
    for tree in trees:
        ids += _ids(tree.branches[0])[: tree.shared]
        positions += range(tree.shared)
        own: list[int] = []
        kept: dict[_Content, range] = {}
        for branch in tree.branches:
            if (content := _content(branch)) not in kept:
                predicted = len(branch.completion_ids)
                own.append(_length(branch) - tree.shared)
                kept[content] = range(len(keep), len(keep) + predicted)
                ids += _ids(branch)[tree.shared :]
                positions += range(tree.shared, _length(branch))
                keep += range(len(ids) - predicted - 1, len(ids) - 1)
            select += kept[content]
        index.append(_tree_index(tree.shared, own))
    sequences = [branch for tree in trees for branch in tree.branches]
    return Batch(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        attention_mask=None,
        trees=tuple(index),
        keep=torch.tensor(keep),
        select=torch.tensor(select),
        tokens=sum(map(_length, sequences)),
        **_flatten(sequences),
    )


def _tree_index(shared: int, lengths: Sequence[int]) -> TreeIndex:
    width = max(lengths)
    counts = torch.tensor(lengths)[:, None]  # (branches, 1)
    firsts = counts.cumsum(0) - counts  # (branches, 1)
    steps = torch.arange(width)[None, :]  # (1, tokens)
    return TreeIndex(
        shared=shared,
        rows=firsts + torch.minimum(steps, counts - 1),
        own=(steps < counts).flatten().nonzero()[:, 0],
    )
