"""A model pair may pin the revisions of its models on the hub."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from specreg.compare.pairs import overridden, parse_override
from specreg.core.address import Address
from specreg.core.errors import MatrixError, UnknownNameError, UnsupportedError
from specreg.engines.registry import ENGINES
from specreg.matrix.case import Case
from specreg.servers.provision import Provision
from tests.unit import builders
from tests.unit.builders.tiers import load

PINNED = """
needs_gpus = 1
[models.pair]
target = "{target}"
drafts = {{ eagle3 = "org/head" }}
target_revision = "0123abcd"
drafts_revision = {{ {method} = "v1.0" }}
[[cases]]
engine = "{engine}"
methods = ["none", "eagle3"]
models = "pair"
dataset = "toy"
concurrency = [4]
prompts = 10
output_cap_tokens = 64
"""


def cases_of(
    folder: Path, engine: str = "vllm", *, target: str = "org/target", method: str = "eagle3"
) -> tuple[Case, ...]:
    """The cases of a tier whose pair pins both models: one without a draft, and one with it."""
    return load(folder, PINNED.format(engine=engine, target=target, method=method)).cases


def words_of(case: Case) -> str:
    """The command line of a case's server on a GPU."""
    spec = case.server
    start = builders.start_of(spec, on_gpu=True, version="0.33.0")
    return " ".join(ENGINES[spec.engine].command(Path("python"), *start))


def test_vllm_serves_the_revisions_that_are_pinned(tmp_path: Path) -> None:
    plain, eagle3 = (words_of(case) for case in cases_of(tmp_path))
    for words in (plain, eagle3):
        assert "--revision 0123abcd --tokenizer-revision 0123abcd" in words
    assert '"revision": "v1.0"' in eagle3
    assert "v1.0" not in plain


def test_sglang_serves_the_revisions_that_are_pinned(tmp_path: Path) -> None:
    plain, eagle3 = (words_of(case) for case in cases_of(tmp_path, "sglang"))
    assert "--revision 0123abcd --speculative-draft-model-revision v1.0" in eagle3
    assert "--revision 0123abcd" in plain
    assert "v1.0" not in plain


def test_what_is_not_pinned_is_left_to_the_engine() -> None:
    spec = dataclasses.replace(builders.SPEC, target="org/target", draft="org/head")
    case = dataclasses.replace(builders.CASE, server=spec)
    assert "revision" not in words_of(case)


def test_another_draft_is_not_of_the_pinned_revision(tmp_path: Path) -> None:
    _, eagle3 = cases_of(tmp_path)
    other_draft = overridden(eagle3, [parse_override("draft=org/other")], {})
    other_steps = overridden(eagle3, [parse_override("draft_tokens=5")], {})
    other_target = overridden(eagle3, [parse_override("target=org/other")], {})
    revisions = [
        (case.server.target_revision, case.server.draft_revision)
        for case in (other_draft, other_steps, other_target)
    ]
    assert revisions == [("0123abcd", ""), ("0123abcd", "v1.0"), ("", "v1.0")]


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"'0123abcd' of './models/x': a folder has no revision"):
        cases_of(tmp_path, target="./models/x")


def test_a_revision_is_of_a_draft_of_the_pair(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown draft 'eagle'"):
        cases_of(tmp_path, method="eagle")


def test_tensorrt_llm_serves_the_pinned_revision_of_a_target(tmp_path: Path) -> None:
    plain, _ = cases_of(tmp_path, "tensorrt_llm")
    assert "--revision 0123abcd" in words_of(plain)


@pytest.mark.parametrize(
    ("engine", "revisions", "role"),
    [
        ("tensorrt_llm", {}, "draft"),
        ("tensorrt_llm", {"target_revision": ""}, "draft"),
        ("reference", {"draft_revision": ""}, "target"),
    ],
)
def test_an_engine_that_fetches_the_newest_alone_is_refused(
    tmp_path: Path, engine: str, revisions: dict[str, Any], role: str
) -> None:
    _, eagle3 = cases_of(tmp_path)
    spec = dataclasses.replace(eagle3.server, engine=engine, method="draft_model", **revisions)
    case = dataclasses.replace(eagle3, server=spec, control=None)
    provision = Provision(on_gpu=True, show=print, attached=Address("http://127.0.0.1:9"))
    with pytest.raises(UnsupportedError, match=f"only the newest revision of the {role}; leave"):
        provision.check([case])
