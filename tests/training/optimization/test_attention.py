"""Three layouts, one result: log-probabilities and gradients, on tiny models with grouped-query heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel  # noqa: E402

from memagent.errors import SettingsError  # noqa: E402
from memagent.training.optimization.attention import attention_over_trees  # noqa: E402
from memagent.training.optimization.policy import Policy  # noqa: E402
from memagent.training.optimization.sequences import batches  # noqa: E402
from memagent.types import TrainingSequence  # noqa: E402
from training.tiny import SMALL, VOCABULARY, gradients, group, llama, policy, qwen3  # noqa: E402

LAYOUTS = ("shared", "packed", "padded")
MODELS = {"llama": llama, "qwen3": qwen3}
IDS = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=6).map(tuple)
BRANCHES = st.lists(st.tuples(IDS, IDS), min_size=1, max_size=4)
GROUPS = st.lists(st.tuples(IDS, BRANCHES), min_size=1, max_size=3)


def alone(model: PreTrainedModel, sequence: TrainingSequence) -> torch.Tensor:
    """The log-probabilities of one completion, from the model as transformers has it `(tokens,)`."""
    ids = torch.tensor([sequence.prompt_ids + sequence.completion_ids])
    logprobs = torch.log_softmax(model(ids).logits[0, :-1].float(), dim=-1)
    picked = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
    return picked[len(sequence.prompt_ids) - 1 :]


def one_by_one(trained: Policy, sequences: list[TrainingSequence]) -> tuple[dict[Any, Any], torch.Tensor]:
    """Sequence after sequence: the log-probabilities of each by its advantage, and the gradient."""
    trained.model.zero_grad()
    by_advantage = {}
    for sequence in sequences:
        logprobs = alone(trained.model, sequence)
        (logprobs.sum() * sequence.advantage).backward()
        by_advantage[sequence.advantage] = logprobs.tolist()
    return by_advantage, gradients(trained)


def laid_out(
    trained: Policy, sequences: list[TrainingSequence], layout: Any, budget: int
) -> tuple[dict[Any, Any], torch.Tensor]:
    """The same, by micro-batches."""
    trained.model.zero_grad()
    by_advantage: dict[Any, Any] = {}
    for batch in batches(sequences, layout, budget):
        logprobs = trained.values(batch).logprobs
        (logprobs * batch.advantages).sum().backward()
        for advantage, logprob in zip(batch.advantages.tolist(), logprobs.tolist(), strict=True):
            by_advantage.setdefault(advantage, []).append(logprob)
    return by_advantage, gradients(trained)


def check(trained: Policy, sequences: list[TrainingSequence], budget: int) -> None:
    wanted, wanted_gradient = one_by_one(trained, sequences)
    for layout in LAYOUTS:
        actual, gradient = laid_out(trained, sequences, layout, budget)
        assert actual.keys() == wanted.keys()
        for advantage, logprobs in wanted.items():
            assert actual[advantage] == pytest.approx(logprobs, abs=1e-5)
        assert torch.allclose(gradient, wanted_gradient, atol=1e-5, rtol=1e-5)


def numbered(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> list[TrainingSequence]:
    return [
        TrainingSequence(prompt, completion, (), number / 4)
        for number, (prompt, completion) in enumerate(pairs, 1)
    ]


@pytest.fixture(scope="module", params=MODELS)
def trained(request: pytest.FixtureRequest) -> Policy:
    return policy(MODELS[request.param]())


@given(GROUPS, st.integers(1, 80))
@settings(max_examples=15)
def test_layouts_agree_on_random_groups(trained: Policy, groups: list[Any], budget: int) -> None:
    pairs = [(beginning + own, completion) for beginning, branches in groups for own, completion in branches]
    check(trained, numbered(*pairs), budget)


@pytest.mark.parametrize("budget", [1, 40, 1000])
def test_layouts_agree_on_groups_that_read_one_chunk_each(trained: Policy, budget: int) -> None:
    pairs = [
        (sequence.prompt_ids, sequence.completion_ids)
        for seed in range(3)
        for sequence in group(seed, shared=20)
    ]
    check(trained, numbered(*pairs), budget)


@pytest.mark.parametrize(
    "pairs",
    [
        [((3, 4, 5), (6, 7))],  # a single sequence
        [((3,), (4,))],  # the shortest there is
        [((3, 4, 5), (6, 7))] * 3,  # identical
        [((3, 4, 5), (6,)), ((3, 4, 5), (7,)), ((3, 4, 5), (6,))],  # identical prompts, one token each
        [((3, 4, 5), (6, 7, 8)), ((3, 4, 5, 6, 7), (8,))],  # a prompt that is another with its completion
        [((3,), (4, 5)), ((3, 4), (5,))],  # nothing to share but a last token
        [((3,) * 30, (4,)), ((5,), (6,) * 30)],  # far apart in length
    ],
)
def test_layouts_agree_on_corners(trained: Policy, pairs: list[Any]) -> None:
    check(trained, numbered(*pairs), 1000)


def test_a_branch_does_not_see_another(trained: Policy) -> None:
    beginning = (5,) * 8
    first = (*beginning, 1), (2, 3)
    one, other = (
        laid_out(trained, numbered(first, ((*beginning, 9), (last,))), "shared", 1000)[0][0.25]
        for last in (7, 8)
    )
    assert one == other


def test_the_order_of_the_sequences_does_not_matter(trained: Policy) -> None:
    sequences = numbered(*[(sequence.prompt_ids, sequence.completion_ids) for sequence in group(5)])
    for layout in LAYOUTS:
        _, forwards = laid_out(trained, sequences, layout, 1000)
        _, backwards = laid_out(trained, sequences[::-1], layout, 1000)
        assert torch.allclose(forwards, backwards, atol=1e-6)


def test_logprobs_are_of_the_distribution_that_was_sampled_from() -> None:
    model = llama().double()
    sequence = TrainingSequence((1, 2, 3), (4,))
    logits = model(torch.tensor([[1, 2, 3]])).logits[0, -1]
    for temperature in (0.5, 1.0, 2.0):
        values = policy(model, temperature=temperature).values(batches([sequence], "shared", 10)[0])
        wanted = torch.log_softmax(logits / temperature, dim=-1)
        assert values.logprobs.item() == pytest.approx(wanted[4].item(), abs=1e-5)
        assert values.entropy.item() == pytest.approx(-(wanted.exp() * wanted).sum().item(), abs=1e-5)


def windowed(name: str, **options: Any) -> PreTrainedModel:
    """A tiny model of a family, whose layers see four tokens."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **SMALL, sliding_window=4, pad_token_id=0, bos_token_id=1,
                                  eos_token_id=2, **options)  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


WINDOWED = {
    "mistral": {},  # these three have a window and no layer_types
    "phi3": {},
    "starcoder2": {},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 1},  # these two have both kinds of layers
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8},
}


@pytest.mark.parametrize("name", WINDOWED)
def test_layouts_agree_on_sliding_windows(name: str) -> None:
    trained = policy(windowed(name, **WINDOWED[name]))
    pairs = [
        (sequence.prompt_ids, sequence.completion_ids)
        for seed in range(2)
        for sequence in group(seed, shared=20)
    ]
    check(trained, numbered(*pairs), 60)
    whole = policy(windowed(name, **WINDOWED[name] | {"use_sliding_window": False}))
    assert name != "qwen3" or alone(whole.model, numbered(*pairs)[0]).tolist() != pytest.approx(
        alone(trained.model, numbered(*pairs)[0]).tolist(), abs=1e-3
    ), "the window matters"


@pytest.mark.parametrize("layout", ["shared", "packed"])
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gemma2", {"query_pre_attn_scalar": 8}, "Gemma2Attention has softcap: .*'padded'"),
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "GptOssAttention has s_aux: "),
        ("llama", {"layer_types": ["full_attention", "linear_attention"]}, "layers of linear_attention: "),
        ("bloom", {}, "BloomForCausalLM computes attention in a way of its own: "),
        ("stablelm", {}, "StableLmAttention was not given the trees: "),
    ],
)
def test_attention_that_cannot_be_laid_out_is_refused(
    layout: Any, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        policy(windowed(name, **options)).values(batches(group(0), layout, 1000)[0])


@pytest.mark.parametrize("make", MODELS.values())
def test_the_model_has_its_own_attention_back(make: Callable[[], PreTrainedModel]) -> None:
    model = make()
    before = model.config._attn_implementation
    with pytest.raises(ZeroDivisionError), attention_over_trees(model):
        assert model.config._attn_implementation != before
        raise ZeroDivisionError
    assert model.config._attn_implementation == before
