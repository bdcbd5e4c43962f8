"""The ways to read: one module each, found by their entry points, as those of other packages are."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from memagent.errors import SettingsError, did_you_mean
from memagent.prompts import NO_UPDATE, Prompts, load_prompts, prompts_from
from memagent.reading.workflow import Workflow
from memagent.settings import ReadSettings, load_workflows
from memagent.types import Trained

DEFAULT = "auto"
_AUTHORS = "https://github.com/BytedTsinghua-SIA/MemAgent"

_log = logging.getLogger(__name__)


def workflows() -> dict[str, Workflow]:
    """All workflows that are installed, by name."""
    return load_workflows()


def choose_workflow(settings: ReadSettings, trained: Trained, answers: bool = True) -> tuple[str, Workflow]:
    """The name of a read's workflow, and the workflow with the prompts that it will use.

    The settings decide; what they leave open follows the workflow and templates that the model was trained
    with. Its templates for a workflow that updates no memory serve all such workflows. If a published model's
    prompts are not at hand, a warning says so. Raises `SettingsError` for an unknown workflow, one that
    cannot `screen` although it has to, one that keeps no memory although no answer is wanted, and templates
    that cannot be used or are for another workflow.
    """
    name = settings.workflow or trained.workflow or DEFAULT
    known = workflows()
    if name not in known:
        near = did_you_mean(name, known)
        raise SettingsError(f"there is no workflow {name!r}{near or ': use one of ' + ', '.join(known)}")
    workflow = known[name]
    if settings.screen and not workflow.screens:
        able = ", ".join(name for name, other in known.items() if other.screens)
        raise SettingsError(
            f"`screen` is for workflows that read chunk by chunk ({able}), not for {name}: drop one"
        )
    if not (answers or workflow.keeps_memory):
        able = ", ".join(name for name, other in known.items() if other.keeps_memory)
        raise SettingsError(f"the workflow {name} keeps no memory that lives on: use {able}")
    prompts = workflow.prompts
    if settings.templates and workflow.templates:
        prompts = load_prompts(Path(settings.templates))
        _check_templates(settings.templates, prompts, name, known)
    elif trained.templates:
        theirs = prompts_from(trained.templates, "the adapter's templates")
        if name == trained.workflow:
            prompts = theirs
        elif prompts.update == theirs.update == NO_UPDATE and prompts.own.keys() <= theirs.own.keys():
            prompts = replace(theirs, own={template: theirs.own[template] for template in prompts.own})
        prompts.check_own(workflow.prompts)
    elif trained.published and name == trained.workflow:
        _warn_of_prompts(trained.published)
    return name, replace(workflow, prompts=prompts)


def _check_templates(file: str, prompts: Prompts, name: str, known: Mapping[str, Workflow]) -> None:
    """Raise `SettingsError` for a user's templates that the workflow of this name cannot use."""
    declared = known[name].prompts
    if prompts.workflow and prompts.workflow not in known:
        near = did_you_mean(prompts.workflow, known)
        raise SettingsError(
            f"the templates in {file} are for {prompts.workflow!r}, which is no workflow"
            f"{near or ': use one of ' + ', '.join(known)}"
        )
    if prompts.workflow not in ("", name):
        raise SettingsError(
            f"the templates in {file} are for {prompts.workflow}, not for {name}: "
            f"set workflow to {prompts.workflow}, or name other templates"
        )
    # Where replies are marked, a note is only the second try: templates may do without.
    spared = {"note"} if declared.replies == "marked" else set[str]()
    if missing := declared.own.keys() - prompts.own.keys() - spared:
        raise SettingsError(
            f"the templates in {file} lack {min(missing)}, which {name} needs: "
            "add it, or set workflow to one that does without"
        )
    if unknown := prompts.own.keys() - {
        template for other in known.values() for template in other.prompts.own
    }:
        raise SettingsError(f"the templates in {file} have {min(unknown)}, which no workflow has")
    prompts.check_own(declared)


@cache
def _warn_of_prompts(model: str) -> None:
    """Warn, once for each model, that it is asked in our words."""
    _log.warning(
        "%s was trained with its authors' prompts, but is asked in ours: fetch theirs with git clone %s, and "
        "set `templates` to MemAgent/recurrent/impls/memory.py",
        model,
        _AUTHORS,
    )
