"""The ways to read, each an async generator of conversations: `WORKFLOWS` is the registry.

A workflow is called with a `Reading`, the document's chunks, and a memory to start from. It uses engines only
through the protocol, may hold conversations side by side, and yields each one when it is finished.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

from memagent.errors import SettingsError, did_you_mean
from memagent.prompts import AUTO, GATED, NOTES, OVERWRITE, Prompts, load_prompts, prompts_from
from memagent.reading.budgets import Budgets, fitted_budgets, heading_tokens
from memagent.reading.conversations import Reading
from memagent.reading.sources import Provenance, Sources, Statement
from memagent.reading.workflows import evidence, heads, map_reduce, parallel, refine, reread, tree, whole
from memagent.reading.workflows.auto import auto
from memagent.reading.workflows.gated import gated
from memagent.reading.workflows.notes import notes, shown_of
from memagent.reading.workflows.overwrite import overwrite
from memagent.settings import ReadSettings
from memagent.types import Chunk, Conversation, Model, Trained

DEFAULT = "auto"
NOTED_TOKENS = 300
"""The size of the chunks that notes are taken on: small models overlook things in longer ones."""

_log = logging.getLogger(__name__)


class Run(Protocol):
    """How a workflow is called."""

    def __call__(
        self, reading: Reading, chunks: AsyncIterator[Chunk], memory: str = ""
    ) -> AsyncGenerator[Conversation, None]:
        """The conversations, each as soon as it is finished."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A named way to read, with the prompts that it was written for.

    `templates` says whether a user's own prompts may take their place; `screens` whether it reads chunk by
    chunk, so that chunks may be passed over by what its memory holds; `looks_ahead` whether a reply may leave
    its memory alone, so that chunks may be asked about ahead; `keeps_memory` whether all that it knows is in
    its memory, so that another read may start from it and the answer may be left out. `heeds` names the
    settings that it uses and most workflows do not; `chunk_tokens` is its usual size of a chunk, if not the
    paper's. `provenance` makes the `Sources` of a memory that holds its sources itself; `shown` says what of
    a memory an answer is made from, if not all of it as it is.
    """

    run: Run
    prompts: Prompts
    templates: bool = False
    screens: bool = False
    looks_ahead: bool = False
    keeps_memory: bool = False
    heeds: tuple[str, ...] = ()
    chunk_tokens: int | None = None
    provenance: Callable[[], Sources] | None = None
    shown: Callable[[Reading, str], str] | None = None

    def budgets(self, settings: ReadSettings, model: Model) -> Budgets:
        """The budgets of a read, fitted to the model's window. May block: it counts tokens.

        Raises `SettingsError` for budgets that do not fit.
        """
        return fitted_budgets(settings, model, self.prompts, self._memories(settings), self.chunk_tokens)

    def most_memory_tokens(self, settings: ReadSettings, model: Model) -> int:
        """How long a memory can be, with all its parts. As `budgets`, it may block, and raises."""
        memories = self._memories(settings)
        return memories * self.budgets(settings, model).memory_tokens + heading_tokens(memories)

    def sources(self, settings: ReadSettings, statements: Iterable[Statement] = ()) -> Sources | None:
        """What tracks where the memory's statements come from, if it is to be told; it starts from these."""
        if self.provenance:
            return self.provenance()
        return Provenance(statements) if settings.cite else None

    def _memories(self, settings: ReadSettings) -> int:
        return settings.heads if "heads" in self.heeds else 1

    def own_settings(self, settings: ReadSettings, model: Model) -> dict[str, int]:
        """The settings named in `heeds`, with the values in force."""
        values = {name: getattr(settings, name) for name in self.heeds}
        return {name: model.calls if value is None else value for name, value in values.items()}


_NOTES = Workflow(
    notes, NOTES, templates=True, screens=True, keeps_memory=True, chunk_tokens=NOTED_TOKENS,
    provenance=evidence.Citations, shown=shown_of,
)  # fmt: skip

WORKFLOWS = {
    "auto": replace(_NOTES, run=auto, prompts=AUTO),
    "notes": _NOTES,
    "overwrite": Workflow(overwrite, OVERWRITE, templates=True, screens=True, keeps_memory=True),
    "gated": Workflow(gated, GATED, templates=True, screens=True, looks_ahead=True, keeps_memory=True),
    "heads": Workflow(
        heads.heads, heads.PROMPTS, templates=True, screens=True, looks_ahead=True, keeps_memory=True,
        heeds=("heads",),
    ),
    "evidence": Workflow(
        evidence.evidence, evidence.PROMPTS, templates=True, screens=True, looks_ahead=True,
        keeps_memory=True, provenance=evidence.Citations,
    ),
    "parallel": Workflow(
        parallel.parallel, parallel.PROMPTS, templates=True, keeps_memory=True, heeds=("rounds",)
    ),
    "tree": Workflow(tree.tree, tree.PROMPTS, templates=True, keeps_memory=True, heeds=("shards",)),
    "reread": Workflow(
        reread.reread, reread.PROMPTS, templates=True, screens=True, looks_ahead=True, keeps_memory=True,
        heeds=("rounds",),
    ),
    "full": Workflow(whole.full, whole.PROMPTS),
    "truncate": Workflow(whole.truncate, whole.PROMPTS),
    "rag": Workflow(whole.rag, whole.PROMPTS),
    "refine": Workflow(refine.refine, refine.PROMPTS, screens=True),
    "map_reduce": Workflow(map_reduce.map_reduce, map_reduce.PROMPTS),
}  # fmt: skip


def chosen_workflow(settings: ReadSettings, trained: Trained) -> tuple[str, Workflow]:
    """The name of a read's workflow, and the workflow with the prompts that it will use.

    The settings decide; what they leave open follows the workflow and templates that the model was trained
    with. If a published model's prompts are not at hand, a warning says so. Raises `SettingsError` for an
    unknown workflow, one that cannot `screen` although it has to, and templates that cannot be used or are
    for another workflow.
    """
    name = settings.workflow or trained.workflow or DEFAULT
    if name not in WORKFLOWS:
        near = did_you_mean(name, WORKFLOWS)
        raise SettingsError(f"there is no workflow {name!r}{near or ': use one of ' + ', '.join(WORKFLOWS)}")
    workflow = WORKFLOWS[name]
    if settings.screen and not workflow.screens:
        known = ", ".join(name for name, it in WORKFLOWS.items() if it.screens)
        raise SettingsError(
            f"`screen` is for workflows that read chunk by chunk ({known}), not for {name}: drop one"
        )
    prompts = workflow.prompts
    if settings.templates and workflow.templates:
        prompts = load_prompts(Path(settings.templates))
        if prompts.workflow and prompts.workflow not in WORKFLOWS:
            near = did_you_mean(prompts.workflow, WORKFLOWS)
            raise SettingsError(
                f"the templates in {settings.templates} are for {prompts.workflow!r}, which is no workflow"
                f"{near or ': use one of ' + ', '.join(WORKFLOWS)}"
            )
        if prompts.workflow not in ("", name):
            raise SettingsError(
                f"the templates in {settings.templates} are for {prompts.workflow}, not for {name}: "
                f"set workflow to {prompts.workflow}, or name other templates"
            )
        # Where replies are marked, a note is only the second try: templates may do without.
        spared = {"note"} if workflow.prompts.replies == "marked" else set[str]()
        if missing := workflow.prompts.optional - prompts.optional - spared:
            raise SettingsError(
                f"the templates in {settings.templates} lack {min(missing)}, which {name} needs: "
                "add it, or set workflow to one that does without"
            )
    elif trained.templates and name == trained.workflow:
        prompts = prompts_from(trained.templates, "the adapter's templates")
    elif trained.published and name == trained.workflow:
        _warn_of_prompts(trained.published)
    return name, replace(workflow, prompts=prompts)


@cache
def _warn_of_prompts(model: str) -> None:
    """Warn, once for each model, that it is asked in our words."""
    _log.warning(
        "%s was trained with its authors' prompts, but is asked in ours: name their memory.py with "
        "`templates`; see the page Published readers",
        model,
    )
