"""Reading: one document, one problem, one workflow, with a journal."""
