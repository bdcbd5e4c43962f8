"""A resumable batch of reads: of files (`memagent.runs.each`), of examples (`memagent.evaluation`)."""
