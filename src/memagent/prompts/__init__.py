"""Prompt templates, the prompts that several modules share, and how untrusted text is put into a prompt."""

from memagent.prompts.guard import MARK_LETTERS, file_head
from memagent.prompts.loading import load_prompts, prompts_from
from memagent.prompts.ours import (
    ANSWER,
    AUTO,
    CLOSING,
    GATED,
    MERGE,
    NO_UPDATE,
    NOTE,
    NOTES,
    OPENING,
    OVERWRITE,
    REWRITE,
    SECTIONS,
    UPDATE,
    WHOLE,
)
from memagent.prompts.templates import (
    ENOUGH,
    MEMORY,
    NOT_THERE,
    UNCHANGED,
    Prompts,
    sections,
)
