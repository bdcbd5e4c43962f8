"""What clients send, as far as the server looks at it, and what the tools of `memagent.server.mcp` return."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, create_model, model_validator

from memagent.errors import SettingsError
from memagent.reading.sources import Source, Statement
from memagent.settings import ReadSettings, Seed, plain_type, settings_by_name

_MAX_NUMBER = 100_000_000
_MAX_FILES = 1000  # of one read: each takes milliseconds to look at
_MAX_LEVELS, _MAX_SIZE = 32, 200_000  # of a parameter; a schema has two levels to one of what it describes
_TEXTS = {"text", "input_text", "refusal"}  # types of parts


def _check_encodable(text: str) -> str:
    """Refuse a text that UTF-8 cannot encode: JSON can contain half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("contains half a surrogate pair, which is not valid text") from error
    return text


Text = Annotated[str, AfterValidator(_check_encodable)]
State = Literal["queued", "running", "done", "failed", "cancelled"]
Tokens = Annotated[int, Field(gt=0, le=_MAX_NUMBER)]
Candidates = Annotated[int, Field(ge=0, le=20)]  # per token; OpenAI's own limit
Item = TypeVar("Item")
Items = Annotated[list[Item], Field(fail_fast=True)]  # or a request of a few MB has a million errors


def _measure(value: Any) -> tuple[int, int]:
    """How many levels a JSON value has, and about how many characters."""
    if not isinstance(value, dict | list):
        return 0, len(str(value))
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    measures = [_measure(part) for part in parts]
    levels, sizes = zip(*measures, strict=True) if measures else ((0,), (0,))
    return 1 + max(levels), 2 * len(parts) + sum(sizes)


_OF_THE_SERVER = ("templates", "prompt_price", "cached_price", "completion_price")  # a file, and its prices


def _derive_options() -> Any:
    """The settings of a read that a client may send: all are optional, and numbers have bounds."""
    options: dict[str, Any] = {}
    for name, (part, item) in settings_by_name().items():
        if part != "read" or name in _OF_THE_SERVER:
            continue
        kind: Any = Annotated[item.annotation, *item.metadata] if item.metadata else item.annotation
        if plain_type(item.annotation) is str:
            kind = Text
        elif plain_type(item.annotation) is int and name != "seed":  # whose bounds are its own
            kind = Annotated[kind, Field(le=_MAX_NUMBER)]
        options[name] = (kind | None, Field(default=None, description=item.description))
    config = ConfigDict(frozen=True, extra="forbid")
    return create_model("Options", __config__=config, **options)


class ReadOptions(_derive_options()):  # type: ignore[misc]
    """Settings of one read, those of the installed workflows among them; the server's are the defaults.

    Templates, which are a file, and prices are the server's alone.
    """

    def over(self, settings: ReadSettings, **values: Any) -> ReadSettings:
        """The server's settings, overridden by `values`, then by these options. Raises `SettingsError`."""
        chosen = values | self.model_dump(include=set(ReadOptions.model_fields), exclude_none=True)
        if settings.max_calls and chosen.get("max_calls", 0) > settings.max_calls:
            raise SettingsError(f"max_calls is {chosen['max_calls']}, the server allows {settings.max_calls}")
        return settings.replace(**chosen)


class ChatOptions(ReadOptions):
    """`memagent` in the body of a chat: the problem, the document, and how to read it."""

    problem: Text | None = Field(default=None, description="the question; by default a message of its own")
    problem_at: Literal["start", "end"] | None = Field(
        default=None, description="where in one long message the question stands, if it has no own message"
    )
    document: Text | None = Field(default=None, description="the text to read; by default everything else")


class ReadRequest(ReadOptions):
    """A read that continues without its client."""

    problem: Text = Field(min_length=1, description="a question, or a standing instruction")
    document: Text | None = Field(default=None, description="a text to read")
    files: Items[Text] = Field(
        default=[],
        max_length=_MAX_FILES,
        description="ids of files to read after the document; an earlier read's id stands for its documents",
    )
    memory: Text = Field(default="", description="the memory to start from")


class _Open(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class FilePart(_Open):
    """A file of a message: one uploaded to /v1/files, or its bytes as a data URL or base64."""

    file_id: Text | None = None
    file_data: str | None = None
    filename: str | None = None


class ContentPart(_Open):
    """A part of a message."""

    type: str
    text: Text | None = None
    file: FilePart | None = None


class FunctionCall(_Open):
    """What a tool call says; some clients send the arguments as an object."""

    name: Text = ""
    arguments: Text | dict[str, Any] | None = None


class ToolCall(_Open):
    """A call of a tool in a message."""

    function: FunctionCall | None = None


class Turn(_Open):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Items[ContentPart] | None = None
    tool_calls: Items[ToolCall] | None = None

    @property
    def parts(self) -> list[ContentPart]:
        """The parts of the message."""
        content = self.content or []
        return (
            [ContentPart.model_construct(type="text", text=content)] if isinstance(content, str) else content
        )

    @property
    def texts(self) -> list[str]:
        """The texts of the message, and the tool calls in it."""
        texts = [part.text for part in self.parts if part.text and part.type in _TEXTS]
        functions = [call.function for call in self.tool_calls or () if call.function]
        return [*texts, *(f"{function.name}({function.arguments or ''})" for function in functions)]

    @property
    def files(self) -> list[FilePart]:
        """The files of the message."""
        return [part.file or FilePart() for part in self.parts if part.type == "file"]


class ChatRequest(_Open):
    """OpenAI's chat completion. Parameters that are not named here go to the model unchanged.

    What would keep a model busy far beyond its reply is refused: others wait for it.
    """

    model: str = Field(max_length=1000)
    messages: Items[Turn] = Field(min_length=1)
    stream: bool | None = None
    stream_options: dict[str, JsonValue] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    seed: Seed | None = None
    stop: str | Items[str] | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    logprobs: bool | None = None
    top_logprobs: Candidates | None = None
    n_probs: Candidates | None = None  # llama.cpp's name for it
    prompt_logprobs: Candidates | None = None  # vLLM's, for each token of the prompt
    ignore_eos: Literal[False] | None = None
    tools: Items[dict[str, JsonValue]] | None = None
    tool_choice: str | dict[str, JsonValue] | None = None
    response_format: dict[str, JsonValue] | None = None
    memagent: ChatOptions | None = None

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if sum(len(turn.files) for turn in self.messages) > _MAX_FILES:
            raise ValueError(f"messages have more than {_MAX_FILES:,} files")
        for name, value in {**self.__dict__, **(self.model_extra or {})}.items():
            levels, size = (0, 0) if name in ("messages", "memagent") else _measure(value)
            if levels > _MAX_LEVELS or size > _MAX_SIZE:
                limit = f"{_MAX_LEVELS} levels" if levels > _MAX_LEVELS else f"{_MAX_SIZE:,} characters"
                raise ValueError(f"{name} has more than {limit}, the most that is passed to the model")
        return self

    @property
    def beginning(self) -> str:
        """The beginning of the reply: the text of the assistant's turn, if the chat ends with one."""
        *others, last = self.messages
        begins = others and last.role == "assistant" and not last.tool_calls
        return "\n\n".join(last.texts) if begins else ""

    @property
    def turns(self) -> list[Turn]:
        """The messages, without the beginning of the reply."""
        return self.messages[:-1] if self.beginning.strip() else self.messages

    @property
    def reply_tokens(self) -> int | None:
        """The longest reply that the client accepts, in tokens."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_usage(self) -> bool:
        """Whether a stream should end with the usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def beyond_text(self) -> dict[str, bool]:
        """The parameters that can ask for more than one reply of plain text, and whether they do."""
        return {
            "n": (self.n or 1) > 1,
            "logprobs": bool(self.logprobs),
            "response_format": (self.response_format or {}).get("type", "text") != "text",
            "messages": any(
                part.type not in {*_TEXTS, "file"} for turn in self.messages for part in turn.parts
            ),
        }

    @property
    def stops(self) -> list[str]:
        """The texts at which a reply ends."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]


class ReadStatus(BaseModel):
    """How far a read has come: `chunks` of about `chunks_in_all`, and what is remembered so far.

    `passed_over` of these chunks were not read (`screen`).
    """

    id: str
    state: State
    chunks: int = 0
    passed_over: int = 0
    chunks_in_all: int | None = None
    seconds_left: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    memory: str = ""
    error: str | None = None


class TableRow(BaseModel):
    """A row: its values by column, those not understood (`unparsed`), and the place that states it."""

    values: dict[str, str | int | float | None]
    unparsed: list[str]
    source: Source


class CountedTable(BaseModel):
    """The rows that an answer was counted from, by `sql`; of many, the first, while `coverage` counts all.

    `coverage` says how much was read: chunks, those passed over and failed; rows, those refused because the
    text states too little of them or something else, merged because they were read twice, and taken from
    tables without a model; values that were not understood, so left out.
    """

    sql: str
    columns: list[str]
    rows: list[TableRow]
    coverage: dict[str, int]


class ReadAnswer(BaseModel):
    """The answer of a read; `statements` are its sentences, each with the place that says it, or none.
    The passages `nearest` to a statement without a source say it in other words, if at all.

    Without `found`, nothing was noted that an answer could come from, and the answer says so.
    `passed_over` of the `chunks` of the files were not read (`screen`). `cut` replies of the model ended at
    their token budget, so that the memory or the answer may lack their end. An answer that code has counted
    has the `table` that it was counted from.
    """

    id: str
    answer: str
    found: bool = True
    statements: list[Statement]
    table: CountedTable | None = None
    files: list[str]
    left_out: list[str]
    chunks: int
    passed_over: int = 0
    cut: int = 0
    prompt_tokens: int
    completion_tokens: int


class NotebookSummary(BaseModel):
    """A notebook: what it is about, and the version it is at."""

    name: str
    about: str
    version: int


class VersionSummary(BaseModel):
    """A version of a notebook: from which it came, what was read for it, and its memory.

    `cut` replies of the model ended at their token budget, so that the memory may lack their end.
    """

    number: int
    parent: int
    created: float
    files: list[str]
    model: str
    document_tokens: int
    cut: int = 0
    prompt_tokens: int
    completion_tokens: int
    memory: str


class AdditionSummary(BaseModel):
    """What adding to a notebook came to: no version if nothing was new.

    Nothing was noted of the files in `unnoted`, which still count as new.
    """

    versions: list[VersionSummary]
    known: list[str]
    unnoted: list[str]
    left_out: list[str]


class AnswerFromNotebook(BaseModel):
    """An answer from a notebook's memory; `statements` are its sentences with the places that say them."""

    answer: str
    version: int
    statements: list[Statement]
