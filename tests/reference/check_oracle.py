"""What the oracle asks of the models, against drafting step by step; and what it refuses.

Run by the reference engine's interpreter, as `check_decoding.py` is.
"""

import functools
import json
import shutil
import tempfile
import unittest
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from specreg.core.errors import ModelError
from specreg.engines.pytorch.decoding import Models, decode, load_models
from specreg.engines.pytorch.heads import Layer, ObservedTarget
from specreg.engines.pytorch.models import load_model
from specreg.engines.pytorch.options import parse_options
from specreg.engines.pytorch.oracle import ORACLE_METHODS, answer_question
from specreg.engines.pytorch.question import OracleAnswer, Question, TokenizedText
from specreg.engines.pytorch.requests import Job

ROOT = Path(__file__).parents[2]
TINY = ROOT / "fixtures/models/tiny"
TARGET = str(TINY / "target")
DRAFTS = {"draft_model": str(TINY / "draft"), "eagle3": str(TINY / "eagle3")}
HEADS = {name: str(TINY / name) for name in ("eagle", "medusa", "dflash")} | {"mtp": ""}
PARALLEL = {name: str(TINY / name) for name in ("pard", "p_eagle")}
MTP_TARGET = str(TINY / "mtp")
DRAFT_TOKENS = 3
ANSWER_TOKENS = 48


@functools.cache
def target() -> Models:
    """The tiny target."""
    arguments = ("--model", TARGET, "--dtype", "float32", "--device", "cpu")
    return load_models(parse_options(arguments))


@functools.cache
def texts() -> tuple[TokenizedText, ...]:
    """Toy prompts and what the target says to them, greedy, in float32."""
    lines = (ROOT / "fixtures/prompts/toy.jsonl").read_text().splitlines()[:6]
    prompts = [tuple(target().tokenizer(json.loads(line)["turns"][0]).input_ids) for line in lines]
    jobs = [Job(prompt=p, output_cap_tokens=ANSWER_TOKENS, ignore_eos=True) for p in prompts]
    ids = [list(prompt) for prompt in prompts]
    for steps in decode(target(), jobs):
        for index, step in steps.items():
            ids[index].extend(step.token_ids)
    return tuple(
        TokenizedText(
            ids=tuple(answer), prompt_tokens=len(prompt), output_tokens=len(answer) - len(prompt)
        )
        for answer, prompt in zip(ids, prompts, strict=True)
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


def read_anew(layer: Layer) -> None:
    """Have a head's layer read the whole text each time, with the attention of transformers."""
    self_attention = layer.self_attn
    config = LlamaConfig(
        hidden_size=self_attention.config.hidden_size,
        num_attention_heads=self_attention.config.num_attention_heads,
        head_dim=self_attention.config.head_dim,
        rope_parameters=msgspec.to_builtins(self_attention.config.rope_parameters),
        attn_implementation="sdpa",
    )
    attention = LlamaAttention(config, 0)
    rotary = LlamaRotaryEmbedding(config)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(attention, name, getattr(self_attention, name))

    def forward(states: torch.Tensor, hidden: torch.Tensor, *_: object) -> torch.Tensor:
        read, _ = attention(states, rotary(states, torch.arange(states.shape[1])[None]))
        after: torch.Tensor = hidden + read
        return after + layer.mlp(layer.post_attention_layernorm(after))

    layer.forward = forward  # type: ignore[assignment, method-assign]


class Oracle(unittest.TestCase):
    def test_bfloat16_is_told_and_differs_little_from_float32(self) -> None:
        for method in DRAFTS:
            exact, rounded = (predicted(method, dtype) for dtype in ("float32", "bfloat16"))
            pairs = zip(exact.accepted, rounded.accepted, strict=True)
            places = [a == b for first, right in pairs for a, b in zip(first, right, strict=True)]
            assert sum(places) > 0.9 * len(places), (method, sum(places), len(places))
            assert max(exact.gaps_nats) == 0
            assert max(rounded.gaps_nats) < 0.25

    def test_the_gap_is_of_the_answer_and_not_of_what_follows_it(self) -> None:
        """The last token is one that the target wouldn't say, in the answer or behind it."""
        text = texts()[0]
        gaps = []
        for tokens in (text.output_tokens, text.output_tokens - 1):
            ids = (*text.ids[:-1], 0)
            shorter = TokenizedText(ids=ids, prompt_tokens=text.prompt_tokens, output_tokens=tokens)
            question = msgspec.structs.replace(ask("none", "float32"), texts=(shorter,))
            gaps.append(answer_question(question, "cpu").gaps_nats[0])
        assert gaps[0] > 1, gaps
        assert gaps[1] == 0, gaps

    def test_unrolled_at_once_heads_get_right_what_they_draft_one_by_one(self) -> None:
        """Drafted anew at each place: what a head has said is then what it reads.

        Medusa and DFlash don't read what they have said: their block is as wide as it always is.
        """
        cases = (("eagle3", False), *((method, False) for method in HEADS), ("mtp", True))
        for method, normed in cases:
            target = MTP_TARGET if method == "mtp" else TARGET
            question = ask(method, "float32", HEADS.get(method, ""), target)
            question = msgspec.structs.replace(question, normed=normed)
            model = load_model(question.target, "float32", "cpu")
            head = ORACLE_METHODS[method].load(question, model)
            embed = model.model.embed_tokens
            observed = ObservedTarget(model, head.layers_read or (model.config.num_hidden_layers,))
            accepted = answer_question(question, "cpu").accepted[0]
            seen = set()
            at_once = method in {"medusa", "dflash"}
            if not at_once:
                read_anew(next(module for module in head.modules() if isinstance(module, Layer)))
            ids = torch.tensor([texts()[0].ids])
            for position in range(2, ids.shape[1] - DRAFT_TOKENS + 1):
                with torch.inference_mode():
                    hidden = observed.observe(ids)[-1][:, : position - 1]
                    text = ids[:, :position]
                    hidden = model.model.norm(hidden) if head.normed or normed else hidden
                    states = head.fc(hidden) if method == "eagle3" else hidden
                    for step in range(DRAFT_TOKENS):
                        after = embed(text[:, 1:])
                        if at_once:
                            last = head.unroll(hidden, after, DRAFT_TOKENS)[step][:, -1:]
                        else:
                            last = head.step(after, states, 0, [])[:, -1:]
                            states = torch.cat([states, last], 1)
                        output, last = (head, head.norm(last)) if head.has_output else (model, last)
                        text = torch.cat([text, output.lm_head(last).argmax(-1)], 1)
                same = (text[0, position:] == ids[0, position : position + DRAFT_TOKENS]).tolist()
                assert accepted[position] == [*same, False].index(False), (method, position)
                seen.add(accepted[position])
            assert seen == set(range(DRAFT_TOKENS + 1)), method

    def test_drafted_in_one_pass_a_place_gets_right_what_it_gets_alone(self) -> None:
        """Each place by itself: the text up to there and masks, read as plain transformers do."""
        text = texts()[0]
        places = range(2, len(text.ids) - DRAFT_TOKENS + 1)
        draft = load_model(PARALLEL["pard"], "float32", "cpu")
        head_question = ask("p_eagle", "float32", PARALLEL["p_eagle"])
        head = ORACLE_METHODS["p_eagle"].load(head_question, target().target)
        read_anew(head.midlayer)
        observed = ObservedTarget(target().target, head.layers_read)
        with torch.inference_mode():
            _, embeddings, streams = observed.observe(torch.tensor([text.ids]))
        masks = DRAFT_TOKENS - 1

        def draft_alone(position: int) -> torch.Tensor:
            ids = (*text.ids[:position], *[draft.config.pard_token] * masks)
            return draft(input_ids=torch.tensor([ids])).logits[0, -DRAFT_TOKENS:]

        def draft_by_head_alone(position: int) -> torch.Tensor:
            after = torch.cat([embeddings[:, 1:position], head.mask.expand(1, masks, -1)], 1)
            known = torch.cat(
                [streams[:, : position - 1], head.mask_hidden.expand(1, masks, -1)], 1
            )
            states = head.step(after, head.fc(known), 0, [])
            return head.lm_head(head.norm(states))[0, -DRAFT_TOKENS:]

        for method, draft_at in (("pard", draft_alone), ("p_eagle", draft_by_head_alone)):
            question = ask(method, "float32", PARALLEL[method])
            accepted = answer_question(question, "cpu").accepted[0]
            for position in places:
                with torch.inference_mode():
                    drafted = draft_at(position).argmax(-1).tolist()
                wanted = text.ids[position : position + DRAFT_TOKENS]
                hits = [
                    drafted_token == wanted_token
                    for drafted_token, wanted_token in zip(drafted, wanted, strict=True)
                ]
                assert accepted[position] == [*hits, False].index(False), (method, position)
            assert {accepted[position] for position in places} == set(range(DRAFT_TOKENS + 1))

    def test_a_draft_of_another_vocabulary_drafts_the_shared_tokens_equally(self) -> None:
        """It is the tiny draft with other ids, and without 64 of its tokens."""
        draft_folder = str(TINY / "other_vocabulary")
        question = ask("draft_model_tli", "float32", draft_folder)
        accepted_by_text = answer_question(question, "cpu").accepted
        # One token after another, with the draft's own tokenizer.
        draft = load_model(draft_folder, "float32", "cpu")
        vocabulary = json.loads((Path(draft_folder) / "tokenizer.json").read_text())["model"][
            "vocab"
        ]
        of_target = json.loads((Path(TARGET) / "tokenizer.json").read_text())["model"]["vocab"]
        names = {target_id: name for name, target_id in of_target.items()}
        target_id_of = {draft_id: of_target[name] for name, draft_id in vocabulary.items()}
        end = vocabulary["<|end|>"]
        for text, accepted in zip(texts()[:2], accepted_by_text, strict=False):
            read = [vocabulary.get(names[target_id], end) for target_id in text.ids]
            for position in range(1, len(text.ids) - DRAFT_TOKENS):
                grown, right = read[:position], 0
                for wanted in text.ids[position : position + DRAFT_TOKENS]:
                    with torch.inference_mode():
                        drafted = int(draft(input_ids=torch.tensor([grown])).logits[0, -1].argmax())
                    if target_id_of[drafted] != wanted:
                        break
                    right += 1
                    grown = [*grown, drafted]
                assert accepted[position] == right, position
        same = answer_question(ask("draft_model", "float32"), "cpu").accepted
        assert sum(map(sum, accepted_by_text)) > 0.8 * sum(map(sum, same))

    def test_a_tree_of_one_branch_is_its_chain_and_one_of_more_holds_it(self) -> None:
        some_texts = texts()[:2]
        for method, draft in (DRAFTS | {"eagle": HEADS["eagle"]}).items():
            chain = msgspec.structs.replace(ask(method, "float32", draft), texts=some_texts)
            chain_accepted = answer_question(chain, "cpu").accepted
            for branches, drafted in ((1, DRAFT_TOKENS), (3, 12)):
                sizes = {"branches": branches, "drafted_tokens": drafted}
                tree = msgspec.structs.replace(chain, method=f"{method}_tree", **sizes)
                walked = answer_question(tree, "cpu").accepted
                for text, right, in_tree in zip(some_texts, chain_accepted, walked, strict=True):
                    position = text.prompt_tokens + 1
                    end = text.prompt_tokens + text.output_tokens
                    while position < end - DRAFT_TOKENS:
                        same = in_tree[position] == right[position]
                        assert same if branches == 1 else in_tree[position] >= right[position]
                        position += in_tree[position] + 1

    def test_a_target_with_a_layer_to_draft_with_says_what_it_says_without(self) -> None:
        targets = (TARGET, MTP_TARGET)
        plain, with_layer = (
            answer_question(ask("none", "float32", target=target), "cpu") for target in targets
        )
        assert plain.gaps_nats == with_layer.gaps_nats

    def test_a_head_computes_where_its_target_is(self) -> None:
        """On torch's device without memory, which no other device's tensors can be mixed with."""
        loaded = ORACLE_METHODS["eagle3"].load(ask("eagle3", "float32"), target().target)
        head = loaded.to("meta", torch.bfloat16)
        residuals, embeddings = (
            torch.empty((1, tokens, channels), device="meta", dtype=torch.bfloat16)
            for tokens, channels in ((5, head.fc.in_features), (7, head.fc.out_features))
        )
        logits = head.unroll(residuals, embeddings, 3)
        assert {(logit.device.type, logit.dtype) for logit in logits} == {("meta", torch.bfloat16)}

    def configured(self, source: str, **settings: object) -> str:
        """A model's folder with something else in its configuration."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        shutil.copytree(source, folder / "model")
        config = json.loads((folder / "model" / "config.json").read_text())
        for key, value in settings.items():
            config[key] = config[key] | value if key == "dflash_config" else value
        (folder / "model" / "config.json").write_text(json.dumps(config))
        return str(folder / "model")

    def refused(self, method: str, words: str, draft: str = "", target: str = TARGET) -> None:
        """The models are refused in such words before anything is computed."""
        with self.assertRaises(ModelError) as caught:  # noqa: PT027 - without pytest
            answer_question(ask(method, "float32", draft=draft, target=target), "cpu")
        assert words in str(caught.exception), caught.exception
        assert draft in str(caught.exception)

    def test_a_draft_of_another_tokenizer_is_refused(self) -> None:
        draft = self.configured(DRAFTS["draft_model"], vocab_size=512)
        self.refused("draft_model", "its tokens (512) aren't the target's (768)", draft)
        draft = self.configured(DRAFTS["draft_model"])
        path = Path(draft) / "tokenizer.json"
        content = json.loads(path.read_text())
        vocabulary = content["model"]["vocab"]
        first, second = [*vocabulary][300:302]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        path.write_text(json.dumps(content))
        self.refused("draft_model", "its tokens (768) aren't the target's (768)", draft)

    def test_models_that_cannot_read_the_texts_are_refused(self) -> None:
        longest = max(len(text.ids) for text in texts())
        for method, draft in DRAFTS.items():
            short = self.configured(draft, max_position_embeddings=longest - 1)
            self.refused(method, f"its context is {longest - 1} tokens, {longest} are to", short)
            enough = self.configured(draft, max_position_embeddings=longest)
            answer_question(ask(method, "float32", draft=enough), "cpu")
        short = self.configured(DRAFTS["draft_model"], max_position_embeddings=longest - 1)
        self.refused("draft_model_tli", f"its context is {longest - 1} tokens", short)
        short = self.configured(TARGET, max_position_embeddings=40)
        self.refused("ngram", "its context is 40 tokens", target=short)

    def test_a_head_that_does_not_fit_is_refused(self) -> None:
        rope = {"rope_theta": 10000.0, "rope_type": "llama3"}
        sizes = "its hidden and vocabulary sizes, (64, 768), aren't the target's"
        tensors = "its tensors don't fit a head of this target"
        for method, words, settings in (
            ("eagle3", sizes, {"hidden_size": 64}),
            ("eagle3", "it reads layers that", {"eagle_aux_hidden_state_layer_ids": [1, 2, 40]}),
            ("eagle3", "Expected `array` of", {"eagle_aux_hidden_state_layer_ids": [1, 2]}),
            ("eagle3", "Invalid enum value 'llama3'", {"rope_parameters": rope}),
            ("eagle3", "Invalid enum value 'gelu'", {"hidden_act": "gelu"}),
            ("eagle3", "it has norm_before_residual", {"norm_before_residual": True}),
            ("eagle3", tensors, {"num_attention_heads": 2}),
            ("medusa", tensors, {"num_heads": 2}),
            ("medusa", "Invalid", {"original_lm_head": False}),
            ("dflash", "its mask or the layers", {"dflash_config": {"target_layer_ids": [0, 4]}}),
            ("dflash", "its mask or the layers", {"dflash_config": {"mask_token_id": 768}}),
            ("dflash", "unknown field `causal`", {"dflash_config": {"causal": True}}),
        ):
            self.refused(method, words, self.configured(str(TINY / method), **settings))
        for method, token, words in (
            ("p_eagle", "ptd_token_id", "its mask isn't among the target's tokens"),
            ("pard", "pard_token", "isn't a token of its vocabulary, got 768"),
        ):
            self.refused(method, words, self.configured(PARALLEL[method], **{token: 768}))
        self.refused("pard", "isn't a token of its vocabulary, got None", DRAFTS["draft_model"])
        no_token = self.configured(PARALLEL["pard"], pard_token=True)
        self.refused("pard", "isn't a token of its vocabulary, got True", no_token)
        self.refused("eagle3", "can't be read by the oracle, ", "/nowhere")
        path = Path(self.configured(HEADS["eagle"])) / "model.safetensors"
        weights = load_file(path)
        save_file(weights | {"fc.bias": weights["fc.bias"] + 1}, path)
        self.refused("eagle", tensors, str(path.parent))

    def test_weights_that_are_not_those_of_the_configuration_are_refused(self) -> None:
        for words, settings in (
            ("3 of its weights are missing or of an", {"intermediate_size": 100}),
            ("9 of its weights are missing or of an", {"num_hidden_layers": 2}),
        ):
            draft = self.configured(DRAFTS["draft_model"], **settings)
            self.refused("draft_model", words, draft)

    def test_weights_that_cannot_be_read_are_refused(self) -> None:
        for method, source in DRAFTS.items():
            draft = self.configured(source)
            (Path(draft) / "model.safetensors").write_bytes(b"x" * 100)
            self.refused(method, "can't be", draft)


if __name__ == "__main__":
    unittest.main()
