"""From sequences to model inputs: rows within a token budget, laid out without waste.

Three layouts give the same numbers. "padded" has one sequence per row, padded to the longest. "packed" puts
all sequences of a micro-batch into one row. "shared" also computes a common prefix only once: all rollouts of
a group read the same chunk, which comes first in their prompts. Both "packed" and "shared" compute identical
sequences once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from memagent.engines.torch.prefill import group_by_beginning
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
class AttentionBlock:
    """Runs of tokens of one row that attend together: prefixes, or branches and what comes before them.

    Runs of similar lengths lie side by side, and are padded at the end with their last token. Each entry of
    `rows` and `before` is the index of a token in the row.
    """

    rows: torch.Tensor  # (runs, tokens)
    before: torch.Tensor  # (runs, shared), padded with the last one
    positions: torch.Tensor  # (runs, shared + tokens), `PADDING` where there is padding
    own: torch.Tensor  # the entries of the flattened `rows` that are not padding

    @property
    def indices(self) -> torch.Tensor:
        """The indices in the row of the tokens that the block computes."""
        return self.rows.flatten()[self.own]


PADDING = 2**40
"""A position after all others, so that only padding sees it."""


@dataclass(frozen=True, slots=True)
class Trees:
    """The layout of a row's trees: blocks, which compute each of its tokens once.

    `order` brings the tokens that the blocks compute, one block after the other, into the order of the row.
    """

    blocks: tuple[AttentionBlock, ...]
    order: torch.Tensor  # (tokens,)

    def to(self, device: torch.device | str) -> Trees:
        """A copy on another device."""
        moved = (
            AttentionBlock(*(getattr(block, name).to(device) for name in block.__slots__))
            for block in self.blocks
        )
        return Trees(tuple(moved), self.order.to(device))


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch.

    Logits are computed at the `indices` of the flattened rows, and `select` picks those of completion tokens.
    The flat tensors have an entry for each completion token of the batch, all in the same order.
    """

    input_ids: torch.Tensor  # (rows, tokens)
    position_ids: torch.Tensor  # (rows, tokens)
    trees: Trees | None
    indices: torch.Tensor  # (logits,)
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
            name: tensor.to(device) for name, tensor in values.items() if isinstance(tensor, torch.Tensor)
        }
        return replace(self, **moved, trees=self.trees and self.trees.to(device))


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
    counts = torch.tensor([len(sequence.completion_ids) for sequence in sequences])
    old = [sequence.old_logprobs or (0.0,) * len(sequence.completion_ids) for sequence in sequences]
    advantages = torch.tensor([sequence.advantage for sequence in sequences], dtype=torch.float32)
    return {
        "targets": torch.tensor([token for sequence in sequences for token in sequence.completion_ids]),
        "old_logprobs": torch.tensor([value for row in old for value in row], dtype=torch.float32),
        "advantages": advantages.repeat_interleave(counts),
        "tokens": sum(map(_length, sequences)),
    }


def _pad(sequences: Sequence[TrainingSequence]) -> Batch:
    """One row per sequence, padded at the end, where causal attention never looks: it needs no mask."""
    width = max(map(_length, sequences))
    indices = [
        row * width + index
        for row, sequence in enumerate(sequences)
        for index in range(len(sequence.prompt_ids) - 1, _length(sequence) - 1)
    ]
    return Batch(
        input_ids=torch.tensor(
            [[*_ids(sequence), *[0] * (width - _length(sequence))] for sequence in sequences]
        ),
        position_ids=torch.arange(width).repeat(len(sequences), 1),
        trees=None,
        indices=torch.tensor(indices),
        select=torch.arange(len(indices)),
        **_flatten(sequences),
    )


def _pack(trees: Sequence[Tree]) -> Batch:
    """All trees in one row: each prefix, then the distinct branches' own tokens."""
    ids: list[int] = []
    positions: list[int] = []
    indices: list[int] = []
    select: list[int] = []
    runs: list[_TokenRun] = []
    for tree in trees:
        before = range(len(ids), len(ids) + tree.shared)
        ids += _ids(tree.branches[0][0])[: tree.shared]
        positions += range(tree.shared)
        runs += [_TokenRun(before, range(0))] if before else []
        for branch in tree.branches:
            predicted = len(branch[0].completion_ids)
            runs.append(_TokenRun(range(len(ids), len(ids) + _length(branch[0]) - tree.shared), before))
            ids += _ids(branch[0])[tree.shared :]
            positions += range(tree.shared, _length(branch[0]))
            select += len(branch) * [*range(len(indices), len(indices) + predicted)]
            indices += range(len(ids) - predicted - 1, len(ids) - 1)
    sequences = [sequence for tree in trees for branch in tree.branches for sequence in branch]
    return Batch(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        trees=_index(runs),
        indices=torch.tensor(indices),
        select=torch.tensor(select),
        **_flatten(sequences),
    )


class _TokenRun(NamedTuple):
    """The indices of a prefix or a branch in the row, and those of the prefix before it."""

    own: range
    before: range


def _index(runs: Sequence[_TokenRun]) -> Trees:
    """The runs in blocks: together if neither their lengths nor those of their prefixes differ twofold."""
    alike: dict[tuple[int, int], list[_TokenRun]] = {}
    for run in runs:
        alike.setdefault((len(run.own).bit_length(), len(run.before).bit_length()), []).append(run)
    blocks = tuple(map(_make_block, alike.values()))
    return Trees(blocks, torch.cat([block.indices for block in blocks]).argsort())


def _make_block(runs: Sequence[_TokenRun]) -> AttentionBlock:
    rows, is_own = _fill_up([run.own for run in runs])
    before, is_before = _fill_up([run.before for run in runs])
    shared = torch.tensor([len(run.before) for run in runs])[:, None]  # (runs, 1)
    positions = [torch.arange(is_before.shape[1]).expand_as(before), shared + torch.arange(rows.shape[1])]
    seen = torch.cat([is_before, is_own], dim=1)  # (runs, shared + tokens)
    return AttentionBlock(
        rows=rows,
        before=before,
        positions=torch.where(seen, torch.cat(positions, dim=1), PADDING),
        own=is_own.flatten().nonzero()[:, 0],
    )


def _fill_up(runs: Sequence[range]) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices of each run `(runs, tokens)`, padded with its last one; and a mask without padding."""
    counts = torch.tensor([len(run) for run in runs])[:, None]  # (runs, 1)
    firsts = torch.tensor([run.start for run in runs])[:, None]
    steps = torch.arange(int(counts.max()))[None, :]  # (1, tokens)
    return firsts + torch.minimum(steps, counts - 1), steps < counts
