"""Notebooks: memories that persist across documents, with all their versions."""

from memagent.notebooks.library import Notebooks, Version
from memagent.notebooks.news import note_document
from memagent.notebooks.notebook import Addition, Notebook, NotebookAnswer
