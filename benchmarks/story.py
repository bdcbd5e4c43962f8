"""Questions about the story in examples/; the twenty that are not yes or no, as a file: story.py FILE."""

from __future__ import annotations

import sys
from pathlib import Path

from measure import STORY

from memagent.documents.tokens import estimate_tokens
from memagent.tasks import write_examples
from memagent.types import Example

QUESTIONS = {
    "Who is the landlord of the Alpha Inn?": ("Windigate",),
    "How large is the reward for the blue carbuncle?": ("1000 pounds", "1000"),
    "Who was arrested for the theft of the blue carbuncle?": ("Horner",),
    "What is John Horner's occupation?": ("plumber",),
    "Where does Mrs. Oakshott live?": ("Brixton Road",),
    "Where was the blue carbuncle found?": ("goose", "crop", "Amoy River"),
    "Who is the upper-attendant at the hotel?": ("Ryder",),
    "From which hotel was the blue carbuncle stolen?": ("Cosmopolitan",),
    "Who owned the blue carbuncle?": ("Countess of Morcar", "Countess"),
    "Who sold the geese to the Alpha Inn?": ("Breckinridge",),
    "What was found inside the goose?": ("carbuncle", "stone", "gem"),
    "Who is Peterson?": ("commissionaire",),
    "Who instituted a goose club?": ("Windigate",),
    "In which river was the stone found?": ("Amoy",),
    "How old is the stone?": ("twenty years",),
    "What is the name of the plumber who was accused of the robbery?": ("Horner",),
    "Which inn did Mr. Henry Baker go to?": ("Alpha",),
    "Who is the egg and poultry supplier?": ("Oakshott",),
    "What is the name of the salesman?": ("Breckinridge",),
    "Who was the maid of the Countess?": ("Catherine Cusack",),
}

YES_OR_NO = {
    "Is the man who was arrested for the robbery innocent?": "yes",
    "Did the thief have help from a servant of the stone's owner?": "yes",
    "Does the thief confess before the story ends?": "yes",
    "Is the thief a brother of the woman who raised the geese?": "yes",
    "Did someone other than Henry Baker eat the goose that he had lost?": "yes",
    "Does Holmes find out something by pretending to bet?": "yes",
    "Did the thief take the wrong goose with him?": "yes",
    "Does the thief go free in the end?": "yes",
    "Did Henry Baker know what was inside his goose?": "no",
    "Did John Horner steal the blue carbuncle?": "no",
    "Do the police find out who stole the stone?": "no",
    "Did the thief sell the stone?": "no",
    "Was the stone in Henry Baker's hat?": "no",
    "Does Holmes visit the hotel where the stone was stolen?": "no",
    "Did Breckinridge raise the geese himself?": "no",
    "Did the thief swallow the stone himself?": "no",
}
"""Questions to be answered with yes or no, eight of each."""


def make_examples() -> list[Example]:
    """An example for each question."""
    document = STORY.read_text("utf-8")
    tokens = estimate_tokens(document)
    return [
        Example(f"story-{number}", "story", problem, document, answers, tokens)
        for number, (problem, answers) in enumerate(QUESTIONS.items())
    ]


if __name__ == "__main__":
    write_examples(Path(sys.argv[1]), make_examples())
