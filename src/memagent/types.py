"""The Engine protocol, and the values that the package shares: frozen, in the words of arXiv 2507.02259."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Protocol

TokenCounter = Callable[[str], int]
"""How many tokens a text has, without special tokens."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a chunk that comes from one source, and from one page where the source has pages.

    `start`, `end` (exclusive) and `offset`, where the source's text begins, are character offsets into the
    whole document: within the source, the part is from `start - offset` to `end - offset`. `page` counts from
    1. `head` is the line that names the source to the model; it is not part of the text, and is empty if the
    source continues or is the only one. `columns` is the head of the table that the part continues.
    """

    source: str
    start: int
    end: int
    page: int | None = None
    offset: int = 0
    head: str = ""
    columns: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document. The texts of all chunks, joined, are the document.

    `start` and `end` (exclusive) are character offsets into the document. `parts` are contiguous. `tokens`
    counts the tokens of `shown`.
    """

    index: int
    text: str
    start: int
    end: int
    tokens: int
    parts: tuple[Part, ...]

    @property
    def source(self) -> str:
        """The name of the first part's source."""
        return self.parts[0].source

    @property
    def shown(self) -> str:
        """The text as the model sees it: in a document of several files, each follows its name."""
        return "".join(f"{part.head}{part.columns}{self.text_of(part)}" for part in self.parts)

    def text_of(self, part: Part) -> str:
        """The text of a part."""
        return self.text[part.start - self.start : part.end - self.start]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a completion is drawn; temperature 0 is greedy.

    `thinking` says whether to think before the reply, within `max_tokens`; None leaves it to the model. A
    `verdict` is a reply of one word, with the log-probabilities of the words that could have stood there; a
    model that has an adapter for verdicts gives it with that. `json_schema` is the schema, as JSON, of what
    the reply must be, for engines that can hold it to one; others leave it out, so replies have to be
    checked.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    thinking: bool | None = None
    verdict: bool = False
    json_schema: str = field(default="", repr=False)  # it follows from the prompt


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens that a call used, as the engine counted them; `estimated` if it did not.

    `cached_tokens` of the prompt's tokens were reused from an earlier call; 0 if the engine does not say.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False

    @property
    def tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Spent:
    """What calls have used together; values add up with `+`.

    Tokens are as in `Usage`, `estimated` if some are, also those of replies that could not be used, which do
    not count as `calls`. `cost` is at the user's own prices, None without any.
    """

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    estimated: bool = False

    @property
    def tokens(self) -> int:
        """Prompts and completions together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def usage(self) -> Usage:
        """The tokens, as if one call had used them."""
        return Usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.estimated)

    def __add__(self, other: Spent) -> Spent:
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Spent(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=sum(costs) if costs else None,
            estimated=self.estimated or other.estimated,
        )


NOTHING_SPENT = Spent()
"""No call at all."""


def flatten(value: Any) -> dict[str, Any]:
    """A dataclass as a dictionary, as by `asdict`, with the fields of its `spent` in place of `spent`."""
    written: dict[str, Any] = {}
    for name, content in asdict(value).items():
        written |= content if name == "spent" else {name: content}
    return written


def unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `flatten`: the values with those of `Spent` as a dictionary named `spent`."""
    names = {item.name for item in fields(Spent)} & values.keys()
    others = {name: value for name, value in values.items() if name not in names}
    return others | {"spent": {name: values[name] for name in names}}


MAX_ALTERNATIVES = 20
"""How many alternatives to its word a verdict comes with: as many as OpenAI and vLLM return."""


@dataclass(frozen=True, slots=True)
class Completion:
    """An engine's reply to a prompt.

    `finish_reason` is "stop", "length" (cut at `Sampling.max_tokens`) or the server's own word. The token ids
    and `logprobs`, one per entry of `completion_ids`, are empty if the engine does not return them. `usage`
    is that of this reply, `unusable` those of replies before it that were paid for and could not be used.
    `alternatives` are the likeliest first tokens of a verdict with their log-probabilities, the one that was
    chosen among them; empty if none were asked for, or the engine tells none.
    """

    text: str
    finish_reason: str = "stop"
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    usage: Usage = Usage()
    alternatives: Mapping[str, float] = field(default_factory=dict)
    unusable: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """One independent prompt and its completion: an update of the memory, or the final answer.

    `memory` is the memory afterwards. An update also records the `span` of the document that it read
    (character offsets), whether the model knows `enough` now, how many passages of the reply were `refused`
    because the document lacks them, how many passages were `given_up` because the memory has no room for
    them, the beginning of a reply other than UNCHANGED that was `ignored` because it left the memory as it
    was, and whether it is `unused`: asked ahead, with a memory that has changed since. An answer is
    `doubtful` if what it was made from has little of what the problem says, or the document lacks a name of
    the problem. A `verdict` is the model's own say whether the chunk helps: log P(Yes) - log P(No). A `table`
    is what an answer was counted from, and how, as JSON; such an answer comes from no model, so it has no
    `messages`.
    """

    kind: Literal["update", "answer"]
    chunk_index: int | None
    messages: tuple[Message, ...]
    completion: Completion
    memory: str
    span: tuple[int, int] | None = None
    source: str | None = None
    enough: bool = False
    refused: int = 0
    given_up: int = 0
    ignored: str = ""
    seconds: float = 0.0
    unused: bool = False
    doubtful: bool = False
    verdict: float | None = None
    table: Mapping[str, Any] | None = None

    def about(self, chunk: Chunk) -> Conversation:
        """The same, as one that has read this chunk."""
        span = chunk.start, chunk.end
        return replace(self, chunk_index=chunk.index, span=span, source=chunk.source)


@dataclass(frozen=True, slots=True)
class Example:
    """One item of a task: a problem, a document, and what counts as an answer.

    `length_tokens` is the document's length, counted by the tokenizer that it was made for. `evidence` holds
    the passages that the answer follows from, verbatim and in the document's order; none if they are not
    known, or if the whole text counts. `rationale` leads from the evidence to the answer, for readers that
    think first. `haystack` names the text around it, with the SHA-256 of its file.
    """

    id: str
    task: str
    problem: str
    document: str
    answers: tuple[str, ...]
    length_tokens: int
    evidence: tuple[str, ...] = ()
    rationale: str = ""
    haystack: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All conversations of one attempt at one example, and the answer they led to.

    `reward` is set by training and evaluation; `error` says why there is no answer. `found` is false if the
    answer says that the document has none.
    """

    example_id: str
    conversations: tuple[Conversation, ...]
    answer: str
    reward: float | None = None
    error: str | None = None
    found: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one example, whose rewards are compared with each other."""

    example: Example
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One conversation as training sees it: the ids as sampled, never retokenised.

    `old_logprobs` has one entry per entry of `completion_ids`, or none if the text was not sampled (a warm
    start). `advantage` is that of the whole trajectory.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...] = ()
    advantage: float = 1.0


@dataclass(frozen=True, slots=True)
class Trained:
    """The settings that an adapter or a published model was trained to read with; empty where unknown.

    `budgets` (token counts) and `settings` (all others) are by the settings' names, `templates` by the fields
    of `Prompts`. `published` names a model whose prompts are its authors' and come as a file.
    """

    budgets: Mapping[str, int] = field(default_factory=dict)
    templates: Mapping[str, object] = field(default_factory=dict)
    workflow: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    published: str = ""


ESTIMATE = "estimate"
"""The value of `Model.tokenizer` when the model's own tokenizer is not available."""

CHAT_TOKENS = 64
"""The room that is left in a prompt for what a chat template adds around the messages."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is known about the model behind an engine.

    `count_tokens` may block. `tokenizer` names the model's own tokenizer, since another one would cut other
    chunks, or is `ESTIMATE`. `window_tokens` is the most that a prompt and its completion have together, if
    known; `calls` how many calls the engine takes at once; `chat_tokens` the most that the chat template adds
    to a prompt. `reads_turn_tokens` says whether a turn token inside a text is one to the model. `judges`
    names what trained it to give verdicts, so that what they mean is known; empty if nothing did.
    """

    name: str
    count_tokens: TokenCounter
    tokenizer: str = ESTIMATE
    window_tokens: int | None = None
    calls: int = 1
    trained: Trained = field(default_factory=Trained)
    reads_turn_tokens: bool = True
    chat_tokens: int = CHAT_TOKENS
    judges: str = ""

    def count_prompt(self, messages: tuple[Message, ...]) -> int:
        """The tokens of a prompt, without those of the chat template. May block."""
        return sum(self.count_tokens(message.content) for message in messages)

    def most_prompt_tokens(self, messages: tuple[Message, ...]) -> int:
        """The most tokens of a prompt, with those of the chat template. May block."""
        return self.count_prompt(messages) + self.chat_tokens


class Engine(Protocol):
    """Anything that completes a chat: an HTTP endpoint, an embedded model, a script."""

    @property
    def model(self) -> Model:
        """What is known about the model."""

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat, or raise `EngineError`; never an empty stand-in for a failure."""

    async def aclose(self) -> None:
        """Release what the engine holds."""
