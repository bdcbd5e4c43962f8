"""Every prompt, once; and how untrusted text is put into one."""

from memagent.prompts.ours import CLOSING, GATED, NO_UPDATE, OVERWRITE, READER
from memagent.prompts.templates import ENOUGH, MEMORY, UNCHANGED, Prompts, load_prompts, prompts_from

__all__ = [
    "CLOSING",
    "ENOUGH",
    "GATED",
    "MEMORY",
    "NO_UPDATE",
    "OVERWRITE",
    "READER",
    "UNCHANGED",
    "Prompts",
    "load_prompts",
    "prompts_from",
]
