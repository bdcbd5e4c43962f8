"""From sequences to model inputs: rows within a token budget, laid out without waste.

Three layouts give the same numbers. "padded" has one sequence per row, padded to the longest. "packed" puts
all sequences of a micro-batch into one row. "shared" also computes a common prefix only once: all attempts of
a group read the same chunk, which comes first in their prompts. Both "packed" and "shared" compute identical
sequences once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memagent.engines.torch.prefill import group_by_beginning, pad_left
from memagent.training.settings import Layout
from memagent.types import TrainingSequence

_UNEVEN = 1.25  # attention (only) pads the branches of a tree to the longest


@dataclass(frozen=True, slots=True)
class Tree:
    """Sequences that begin with the same `shared` tokens (0: they only have similar lengths).

    A branch is a list of identical sequences, which are computed once.
    """

    shared: int
    branches: list[list[TrainingSequence]]

    @property
    def lengths(self) -> list[int]:
        """The tokens of each branch, without the prefix."""
        return [_length(branch[0]) - self.shared for branch in self.branches]


@dataclass(frozen=True, slots=True)
class TreeIndex:
    """How a tree lies in its row, after the trees before it: `shared` tokens, then those of its branches.

    `rows` `(branches, tokens)` holds the place of each branch's tokens among those of all branches, the last
    one repeated as padding. `own` selects the entries of the flattened `rows` that are not padding.
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
        values = {name: getattr(self, name) for name in self.__slots__}
        moved: dict[str, Any] = {
            name: it.to(device) for name, it in values.items() if isinstance(it, torch.Tensor)
        }
        if self.trees:
            moved["trees"] = tuple(
                TreeIndex(it.shared, it.rows.to(device), it.own.to(device)) for it in self.trees
            )
        return replace(self, **moved)


def batches(sequences: Sequence[TrainingSequence], layout: Layout, budget_tokens: int) -> list[Batch]:
    """The sequences in micro-batches of at most `budget_tokens` computed tokens, or of one sequence."""
    if layout == "padded":
        parts = _divide(sequences, lambda part, _: _length(part[0]) * (len(part) + 1) <= budget_tokens)
        return [_pad(part) for part in parts]
    trees = _group_by_prefix(sequences) if layout == "shared" else _group_by_length(sequences)
    return [_pack(part) for part in _fill(trees, budget_tokens)]


def _length(sequence: TrainingSequence) -> int:
    return len(sequence.prompt_ids) + len(sequence.completion_ids)


def _ids(sequence: TrainingSequence) -> tuple[int, ...]:
    return sequence.prompt_ids + sequence.completion_ids


def _make_tree(shared: int, sequences: Sequence[TrainingSequence]) -> Tree:
    branches: dict[Any, list[TrainingSequence]] = {}
    for sequence in sequences:
        branches.setdefault((sequence.prompt_ids, sequence.completion_ids), []).append(sequence)
    return Tree(shared, list(branches.values()))


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
            trees.append(_make_tree(shared, [sequences[index] for index in members]))
        else:
            alone += [sequences[index] for index in members]
    return trees + _group_by_length(alone)


def _group_by_length(sequences: Sequence[TrainingSequence]) -> list[Tree]:
    parts = _divide(sequences, lambda part, one: _length(part[0]) <= _UNEVEN * _length(one))
    return [_make_tree(0, part) for part in parts]


def _fill(trees: Sequence[Tree], budget_tokens: int) -> list[list[Tree]]:
    """The trees in bins of at most `budget_tokens`; one that is too large is split, its prefix repeated."""
    pieces = [piece for tree in trees for piece in _split(tree, budget_tokens)]
    sized = [(piece.shared + sum(piece.lengths), piece) for piece in pieces]
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
    pieces = [Tree(tree.shared, [])]
    used = tree.shared
    for branch, own in zip(tree.branches, tree.lengths, strict=True):
        if pieces[-1].branches and used + own > budget_tokens:
            pieces.append(Tree(tree.shared, []))
            used = tree.shared
        pieces[-1].branches.append(branch)
        used += own
    return pieces


def _flatten(sequences: Sequence[TrainingSequence]) -> dict[str, Any]:
    counts = torch.tensor([len(it.completion_ids) for it in sequences])
    old = [it.old_logprobs or (0.0,) * len(it.completion_ids) for it in sequences]
    advantages = torch.tensor([it.advantage for it in sequences], dtype=torch.float32)
    return {
        "targets": torch.tensor([token for it in sequences for token in it.completion_ids]),
        "old_logprobs": torch.tensor([value for row in old for value in row], dtype=torch.float32),
        "advantages": advantages.repeat_interleave(counts),
        "tokens": sum(map(_length, sequences)),
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
        ids += _ids(tree.branches[0][0])[: tree.shared]
        positions += range(tree.shared)
        for branch in tree.branches:
            predicted = len(branch[0].completion_ids)
            ids += _ids(branch[0])[tree.shared :]
            positions += range(tree.shared, _length(branch[0]))
            select += len(branch) * [*range(len(keep), len(keep) + predicted)]
            keep += range(len(ids) - predicted - 1, len(ids) - 1)
        index.append(_index_tree(tree.shared, tree.lengths))
    sequences = [sequence for tree in trees for branch in tree.branches for sequence in branch]
    return Batch(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        attention_mask=None,
        trees=tuple(index),
        keep=torch.tensor(keep),
        select=torch.tensor(select),
        **_flatten(sequences),
    )


def _index_tree(shared: int, lengths: Sequence[int]) -> TreeIndex:
    width = max(lengths)
    counts = torch.tensor(lengths)[:, None]  # (branches, 1)
    firsts = counts.cumsum(0) - counts  # (branches, 1)
    steps = torch.arange(width)[None, :]  # (1, tokens)
    return TreeIndex(
        shared=shared,
        rows=firsts + torch.minimum(steps, counts - 1),
        own=(steps < counts).flatten().nonzero()[:, 0],
    )
