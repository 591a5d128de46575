"""What the oracle asks of the models, against drafting step by step; and what it refuses.

Run by the reference engine's interpreter, as `check_decoding.py` is.
"""

import functools
import json
import shutil
import tempfile
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from specreg.core.errors import ModelError
from specreg.engines.pytorch.decoding import decode
from specreg.engines.pytorch.eagle3 import Eagle3Head, HeadSize, ObservedTarget
from specreg.engines.pytorch.models import load_models
from specreg.engines.pytorch.options import parse_options
from specreg.engines.pytorch.oracle import answer_question, load_head
from specreg.engines.pytorch.oracle_questions import OracleAnswer, Question, Text
from specreg.engines.pytorch.requests import Job

ROOT = Path(__file__).parents[2]
TINY = ROOT / "fixtures/models/tiny"
TARGET = str(TINY / "target")
DRAFTS = {"draft_model": str(TINY / "draft"), "eagle3": str(TINY / "eagle3")}
DRAFT_TOKENS = 3
ANSWER_TOKENS = 48


@functools.cache
def texts() -> tuple[Text, ...]:
    """Toy prompts and what the target says to them, greedy, in float32."""
    arguments = ("--model", TARGET, "--dtype", "float32", "--devices", "cpu")
    loaded = load_models(parse_options(arguments))
    lines = (ROOT / "fixtures/prompts/toy.jsonl").read_text().splitlines()[:6]
    prompts = [tuple(loaded.tokenizer(json.loads(line)["turns"][0]).input_ids) for line in lines]
    jobs = [Job(prompt=p, output_cap_tokens=ANSWER_TOKENS, ignore_eos=True) for p in prompts]
    ids = [list(prompt) for prompt in prompts]
    for steps in decode(loaded.models, jobs):
        for place, step in steps.items():
            ids[place].extend(step.token_ids)
    return tuple(
        Text(ids=tuple(own), prompt_tokens=len(prompt), output_tokens=len(own) - len(prompt))
        for own, prompt in zip(ids, prompts, strict=True)
    )


def ask(method: str, dtype: str, draft: str = "", target: str = TARGET) -> Question:
    """The tiny models about the texts, unless others are named."""
    return Question(
        method=method,
        target=target,
        draft=draft or DRAFTS.get(method, ""),
        draft_tokens=DRAFT_TOKENS,
        dtype=dtype,
        texts=texts(),
    )


def predicted(method: str, dtype: str = "float32") -> OracleAnswer:
    """What the tiny models say of the texts."""
    return answer_question(ask(method, dtype), "cpu")


class NumberFormats(unittest.TestCase):
    def test_bfloat16_is_told_and_differs_little_from_float32(self) -> None:
        for method in DRAFTS:
            exact, rounded = (predicted(method, dtype) for dtype in ("float32", "bfloat16"))
            places = [
                one == other
                for ours, theirs in zip(exact.accepted, rounded.accepted, strict=True)
                for one, other in zip(ours, theirs, strict=True)
            ]
            assert sum(places) > 0.9 * len(places), (method, sum(places), len(places))
            assert max(exact.gaps_nats) == 0
            assert max(rounded.gaps_nats) < 0.25

    def test_the_gap_is_of_the_answer_and_not_of_what_follows_it(self) -> None:
        """The last token is one that the target wouldn't say, as its own or as somebody else's."""
        text = texts()[0]
        worst = (*text.ids[:-1], 0)
        gaps = [
            answer_question(
                msgspec.structs.replace(
                    ask("none", "float32"),
                    texts=(
                        Text(ids=worst, prompt_tokens=text.prompt_tokens, output_tokens=tokens),
                    ),
                ),
                "cpu",
            ).gaps_nats[0]
            for tokens in (text.output_tokens, text.output_tokens - 1)
        ]
        assert gaps[0] > 1, gaps
        assert gaps[1] == 0, gaps

    def test_auto_is_the_weights_own_which_is_bfloat16(self) -> None:
        for method in DRAFTS:
            assert predicted(method, "auto") == predicted(method, "bfloat16")


class Alone:
    """A head that reads one token after the other, by the definition of attention."""

    def __init__(self, head: Eagle3Head) -> None:
        self.head = head
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def read(self, embedding: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The next hidden state, `[hidden]`."""
        layer, attention = self.head.midlayer, self.head.midlayer.self_attn
        both = torch.cat([layer.input_layernorm(embedding), layer.hidden_norm(hidden)])
        shape = (attention.size.heads, attention.size.head_channels)
        place = len(self.keys)
        query = self.turned(attention.q_proj(both).view(shape), place)
        self.keys.append(self.turned(attention.k_proj(both).view(shape), place))
        self.values.append(attention.v_proj(both).view(shape))
        scores = torch.stack([(query * key).sum(-1) for key in self.keys]) / shape[1] ** 0.5
        weights = torch.softmax(scores, 0)
        attended = (weights[..., None] * torch.stack(self.values)).sum(0)
        hidden = hidden + attention.o_proj(attended.flatten())
        after: torch.Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return after

    def turned(self, states: torch.Tensor, place: int) -> torch.Tensor:
        """`[heads, channels]`, each pair of channels as a complex number that is turned."""
        half = states.shape[-1] // 2
        base = self.head.midlayer.self_attn.size.rope_base
        angles = torch.tensor([place * base ** (-pair / half) for pair in range(half)])
        number = torch.complex(states[:, :half], states[:, half:])
        number = number * torch.polar(torch.ones(half), angles)
        return torch.cat([number.real, number.imag], -1)

    def drafts(self, hidden: torch.Tensor, embed: torch.nn.Module, count: int) -> Sequence[int]:
        """What it says next, each said after what it said before; then it forgets them."""
        read, said = len(self.keys), []
        while True:
            said.append(int(self.head.lm_head(self.head.norm(hidden)).argmax()))
            if len(said) == count:
                break
            hidden = self.read(embed(torch.tensor(said[-1])), hidden)
        del self.keys[read:], self.values[read:]
        return said


class Heads(unittest.TestCase):
    def test_unrolled_at_once_a_head_gets_right_what_it_drafts_step_by_step(self) -> None:
        target = load_models(
            parse_options(("--model", TARGET, "--dtype", "float32", "--devices", "cpu"))
        ).models.target
        loaded = load_head(DRAFTS["eagle3"], target, 1)
        observed = ObservedTarget(target, loaded.layers)
        embed = target.model.embed_tokens
        seen: set[int] = set()
        for text, accepted in zip(texts(), predicted("eagle3").accepted, strict=True):
            with torch.inference_mode():
                streams = observed.observe(torch.tensor([text.ids]))[-1][0]
                alone = Alone(loaded.head)
                for place in range(2, len(text.ids) - DRAFT_TOKENS + 1):
                    embedding = embed(torch.tensor(text.ids[place - 1]))
                    hidden = alone.read(embedding, loaded.head.fc(streams[place - 2]))
                    drafts = alone.drafts(hidden, embed, DRAFT_TOKENS)
                    right = 0
                    while right < DRAFT_TOKENS and drafts[right] == text.ids[place + right]:
                        right += 1
                    assert accepted[place] == right, place
                    seen.add(right)
        assert seen == set(range(DRAFT_TOKENS + 1))

    def test_a_head_computes_where_its_target_is(self) -> None:
        """On torch's device without memory, which no other device's tensors can be mixed with."""
        size = HeadSize(
            hidden_channels=8,
            mlp_channels=8,
            heads=2,
            head_channels=4,
            vocabulary_tokens=16,
            norm_epsilon=1e-6,
            rope_base=1e4,
        )
        head = Eagle3Head(size).to("meta", torch.bfloat16)
        residuals, embeddings = (
            torch.empty((1, tokens, channels), device="meta", dtype=torch.bfloat16)
            for tokens, channels in ((5, 24), (7, 8))
        )
        logits = head.unroll(residuals, embeddings, 3)
        assert {(one.device.type, one.dtype) for one in logits} == {("meta", torch.bfloat16)}


class Refusals(unittest.TestCase):
    def copy(self, source: str, change: Callable[[Path], None]) -> str:
        """A model's folder with something changed."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        shutil.copytree(source, folder / "model")
        change(folder / "model")
        return str(folder / "model")

    def configured(self, source: str, *without: str, **settings: object) -> str:
        def change(folder: Path) -> None:
            config = json.loads((folder / "config.json").read_text()) | settings
            kept = {key: value for key, value in config.items() if key not in without}
            (folder / "config.json").write_text(json.dumps(kept))

        return self.copy(source, change)

    def refused(
        self, method: str, draft: str = "", target: str = TARGET, dtype: str = "float32"
    ) -> str:
        """What is said of a draft or target."""
        try:
            answer_question(ask(method, dtype, draft=draft, target=target), "cpu")
        except ModelError as error:
            return str(error)
        return "nothing"

    def test_a_draft_that_does_not_fit_is_refused_before_anything_is_computed(self) -> None:
        def swap(folder: Path) -> None:
            path = folder / "tokenizer.json"
            content = json.loads(path.read_text())
            vocabulary = content["model"]["vocab"]
            one, other = [*vocabulary][300:302]
            vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
            path.write_text(json.dumps(content))

        longest = max(len(text.ids) for text in texts())
        own = DRAFTS["draft_model"]
        for draft, words in (
            (self.configured(own, vocab_size=512), "has 512 entries, the target's 768; choose"),
            (self.copy(own, swap), "its tokenizer isn't the target's, 2 tokens differ, '"),
            (
                self.configured(own, max_position_embeddings=longest - 1),
                f"its context is {longest - 1} tokens, {longest} are to be read; lower",
            ),
            ("/nowhere", "model '/nowhere': has no configuration"),
        ):
            said = self.refused("draft_model", draft)
            assert words in said, said
        enough = self.configured(own, max_position_embeddings=longest)
        assert self.refused("draft_model", enough) == "nothing"

    def test_a_target_that_cannot_read_the_texts_is_refused(self) -> None:
        for method in ("ngram", *DRAFTS):
            said = self.refused(method, target=self.configured(TARGET, max_position_embeddings=40))
            assert said.startswith("target '")
            assert "its context is 40 tokens, " in said

    def test_a_head_that_does_not_fit_is_refused_before_anything_is_computed(self) -> None:
        own = DRAFTS["eagle3"]
        rope = {"rope_theta": 10000.0, "rope_type": "llama3"}
        for draft, words in (
            (self.configured(own, hidden_size=64), "its hidden_size is 64, the target's 128; choo"),
            (self.configured(own, vocab_size=512), "its vocab_size is 512, the target's 768; choo"),
            (
                self.configured(own, eagle_aux_hidden_state_layer_ids=[1, 2, 40]),
                "listens after layers 1, 2, 40, the target has 4; choose",
            ),
            (
                self.configured(own, eagle_aux_hidden_state_layer_ids=[1, 2]),
                "Expected `array` of length 3",
            ),
            (self.configured(own, max_position_embeddings=40), "its context is 40 tokens, "),
            (self.configured(own, "head_dim"), "missing required field `head_dim`"),
            (self.configured(own, rope_parameters=rope), "Invalid enum value 'llama3'"),
            (self.configured(own, hidden_act="gelu"), "Invalid enum value 'gelu'"),
            (self.configured(own, norm_before_residual=True), "adds what is normed"),
            (self.configured(own, num_attention_heads=2), "has other tensors than a Llama head"),
            (self.copy(own, cut), "its model.safetensors can't be read"),
            ("/nowhere", "the oracle knows heads in folders alone"),
        ):
            said = self.refused("eagle3", draft)
            assert said.startswith(f"head '{draft}': ")
            assert words in said, said
            assert "folders alone" not in said or draft == "/nowhere"

    def test_weights_that_are_not_those_of_the_configuration_are_refused(self) -> None:
        own = DRAFTS["draft_model"]
        for draft, words in (
            (self.configured(own, intermediate_size=100), "3 of its weights are missing or of an"),
            (self.configured(own, num_hidden_layers=2), "9 of its weights are missing or of an"),
            (
                self.configured(own, head_dim=None, num_attention_heads=3),
                "The hidden size (64) is not a multip",
            ),
            (self.copy(own, cut), "can't be loaded, Error while deseri"),
        ):
            said = self.refused("draft_model", draft)
            assert said.startswith(f"model '{draft}': ")
            assert words in said, said

    def test_a_number_format_that_is_none_is_refused(self) -> None:
        assert "check name and dtype" in self.refused("ngram", dtype="float7")


def cut(folder: Path) -> None:
    """Leaves a hundred bytes of a model's weights."""
    (folder / "model.safetensors").write_bytes(b"x" * 100)


if __name__ == "__main__":
    unittest.main()
