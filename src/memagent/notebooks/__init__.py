"""Notebooks: memories that persist across documents, with all their versions."""

from memagent.notebooks.additions import Addition, note_document
from memagent.notebooks.library import Notebooks, Version
from memagent.notebooks.notebook import Notebook, NotebookAnswer
