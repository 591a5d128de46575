"""`specreg matrix --commands` prints what starts each server, for somebody to paste."""

import json
from pathlib import Path

import pytest

from specreg.engines.registry import engine_named
from specreg.servers.containers import RUNTIME_VARIABLE
from specreg.servers.provision import interpreter_of
from tests.unit.builders.command_line import specreg
from tests.unit.builders.shell import paste, write_stub

TIER = """
needs_gpus = 1
[models.pair]
target = "org/target"
drafts = { eagle3 = "org/it's a draft" }
[[cases]]
engine = "vllm"
methods = ["none", "eagle3"]
models = "pair"
dataset = "toy"
concurrency = [1, 4]
prompts = 10
output_cap_tokens = 64
engine_env = { NCCL_DEBUG = "INFO; $(false)" }
[[cases]]
engine = "triton"
methods = ["ngram"]
models = "pair"
dataset = "toy"
form = "completions"
concurrency = [1]
prompts = 10
output_cap_tokens = 64
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a tier, and stubs instead of the engines."""
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "fixtures/matrix/here.toml"
    path.parent.mkdir(parents=True)
    path.write_text(TIER)
    write_stub(interpreter_of(engine_named("vllm").requirement(on_gpu=True)))
    return tmp_path


def printed(root: Path, *arguments: str) -> str:
    """What `specreg matrix --commands` prints for the tier."""
    done = specreg(root, "matrix", "--tier", "here", "--commands", *arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_what_is_printed_starts_the_server_of_a_case_and_its_control(root: Path) -> None:
    control, server = paste(printed(root, "-k", "EAGLE3"), root)
    for started in (control, server):
        assert started.words[1:4] == ["-m", "vllm.entrypoints.cli.main", "serve"]
        assert started.variables["NCCL_DEBUG"] == "INFO; $(false)"
        assert started.variables["VLLM_NO_USAGE_STATS"] == "1"
        assert started.variables["PATH"].split(":")[0] == str(Path(started.words[0]).parent)
    config = json.loads(server.words[server.words.index("--speculative-config") + 1])
    assert config["model"] == "org/it's a draft"
    assert "--speculative-config" not in control.words


def test_each_server_is_printed_once_with_its_cases(root: Path) -> None:
    heads = [
        line for line in printed(root, "-k", "vllm").splitlines() if line.startswith("# vllm-")
    ]
    assert [len(head.split(", ")) for head in heads] == [4, 2]


def test_files_of_a_server_are_written_where_its_command_looks_for_them(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stub(root / "bin/tritonserver")
    monkeypatch.setenv("PATH", f"{root}/bin", prepend=":")
    monkeypatch.setenv("TMPDIR", str(root / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (root / "temporary").mkdir()

    *_, started = paste(printed(root, "-k", "triton"), root)

    folder = Path(started.words[started.words.index("--model-repository") + 1])
    name = started.words[started.words.index("--load-model") + 1]
    arguments = json.loads((folder / name / "1/model.json").read_text())
    assert arguments["speculative_config"]["method"] == "ngram"


def test_a_word_that_no_case_has_is_refused(root: Path) -> None:
    done = specreg(root, "matrix", "--tier", "here", "-k", "medusa")
    assert done.exit_code != 0


IMAGE = "vllm/vllm-openai:v0.33.0"


def with_images(root: Path) -> None:
    """Let the cases of vLLM run in an image, and add one of TensorRT-LLM in its image."""
    path = root / "fixtures/matrix/here.toml"
    text = path.read_text().replace('engine = "vllm"', f'engine = "vllm"\nimage = "{IMAGE}"')
    path.write_text(f"{text}{OF_TENSORRT_LLM}")


OF_TENSORRT_LLM = """
[[cases]]
engine = "tensorrt_llm"
image = "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc5"
methods = ["none"]
models = "pair"
dataset = "toy"
concurrency = [1]
prompts = 10
output_cap_tokens = 64
"""


def test_the_command_of_an_image_is_that_of_its_container(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_images(root)
    write_stub(root / "bin/docker")
    monkeypatch.setenv(RUNTIME_VARIABLE, "docker")
    monkeypatch.setenv("PATH", f"{root}/bin", prepend=":")

    text = printed(root, "-k", "EAGLE3")
    assert f"# {IMAGE} isn't here yet; the first run pulls it" in text
    control, server = paste(text, root)
    for started in (control, server):
        assert started.words[1:3] == ["run", "--rm"]
        assert started.words[started.words.index("--gpus") + 1] == '"device=all"'
        assert started.words[started.words.index(IMAGE) + 1 :][:2] == [
            *("-m", "vllm.entrypoints.cli.main")
        ]
        assert started.variables["NCCL_DEBUG"] == "INFO; $(false)"
        # A later run would stop a container that is its own.
        assert not {"--name", "--label", "--cidfile"} & {*started.words}


def test_tensorrt_llm_is_started_by_the_program_of_its_image(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_images(root)
    # No runtime works here.
    monkeypatch.setenv(RUNTIME_VARIABLE, "/nowhere/docker")
    text = printed(root, "-k", "tensorrt_llm")
    assert "docker run --rm " in text
    assert " --entrypoint trtllm-serve " in text
    assert " nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc5 org/target --host 127.0.0.1 " in text


def test_an_image_changes_no_estimate(root: Path) -> None:
    estimates = []
    for change in (lambda _: None, with_images):
        change(root)
        done = specreg(root, "matrix", "--tier", "here", "-k", "vllm")
        estimates.append(done.output)
    assert "vllm-eagle3-pair-toy-c4" in estimates[0]
    assert estimates[0] == estimates[1]
