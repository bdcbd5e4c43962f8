"""verl's LLM servers as an engine: token ids in, sampled ids with log-probabilities out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from memagent.errors import ContextOverflowError, EngineError
from memagent.types import Completion, Message, Model, Sampling, Usage


@dataclass(slots=True, kw_only=True)
class ServerEngine:
    """Completes the chats of one attempt through verl's client.

    `sampling` holds verl's sampling parameters (temperature, top_p and so on; greedy in validation): a read
    sets only the length of a reply, and its seed if `seeded`. `request_id` determines which server is used.
    `stop_ids` are the tokens that end a reply. `prompt_tokens` bounds prompts, `window_tokens` prompt and
    reply together. `reports` collects what verl reports about each completion, in order.
    """

    client: Any
    tokenizer: Any
    request_id: str
    sampling: dict[str, Any]
    prompt_tokens: int
    window_tokens: int
    stop_ids: frozenset[int]
    template: dict[str, Any] = field(default_factory=dict)
    seeded: bool = False
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def model(self) -> Model:
        """The policy, with its own tokenizer."""
        name = str(self.tokenizer.name_or_path)
        return Model(name, self._count_tokens, name, self.window_tokens)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat. Errors from verl propagate: they are not the policy's fault.

        Raises `ContextOverflowError` if the prompt is too long, `EngineError` if the servers send nothing.
        """
        prompt_ids = self._prompt_ids(messages, sampling.max_tokens)
        how = {**self.sampling, "max_tokens": sampling.max_tokens}
        if self.seeded:
            how["seed"] = sampling.seed
        output = await self.client.generate(
            request_id=self.request_id, prompt_ids=prompt_ids, sampling_params=how
        )
        ids = output.token_ids
        if not ids or output.stop_reason == "aborted":
            raise EngineError(f"the server's reply has {len(ids)} tokens ({output.stop_reason})")
        self.reports.append(output.extra_fields)
        return Completion(
            # The clean-up that some tokenizers still enable removes spaces from the text.
            text=self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            finish_reason="stop" if ids[-1] in self.stop_ids else "length",
            prompt_ids=tuple(prompt_ids),
            completion_ids=tuple(ids),
            logprobs=tuple(output.log_probs or ()),
            usage=Usage(len(prompt_ids), len(ids)),
        )

    async def aclose(self) -> None:
        """Nothing to close: the servers belong to verl."""

    def _prompt_ids(self, messages: tuple[Message, ...], max_tokens: int) -> list[int]:
        ids: list[int] = self.tokenizer.apply_chat_template(
            [asdict(message) for message in messages],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self.template,
        )
        if len(ids) > self.prompt_tokens or len(ids) + max_tokens > self.window_tokens:
            raise ContextOverflowError(
                f"the prompt has {len(ids)} tokens and its reply up to {max_tokens}: data.max_prompt_length "
                f"is {self.prompt_tokens}, and the window for both together {self.window_tokens}"
            )
        return ids

    def _count_tokens(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
