"""Files with something wrong in them end in a named error or in a valid reading."""

import functools
import itertools
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from specreg.baselines.schema import load_acceptance, load_baseline, load_published, render_baseline
from specreg.datasets.prepare import load_prompts, paths_of, prepare
from specreg.datasets.prompt_files import load_prompt_file, load_published_rows
from specreg.datasets.prompts import Prompt, interleaved, prompts_sha256
from specreg.datasets.published_file import read_published_file
from specreg.datasets.table import dataset_named
from specreg.matrix.tier import load_tier
from specreg.measurement.metrics import METRICS, check_allowed
from tests.fuzz.mutations import bytes_of, json_of, rows_of, toml_of
from tests.fuzz.trying import Sample, read_all_sound, try_all
from tests.unit import builders
from tests.unit.builders.container_files import SGLANG_COMPOSE, VLLM_KUBERNETES

BASELINES = builders.ROOT / "baselines"
MATRIX = builders.ROOT / "fixtures/matrix"
PAIRS = builders.ROOT / "fixtures/models/pairs.toml"
TOY = builders.ROOT / "fixtures/prompts/toy.jsonl"
TIER_OF_SERVER = """
needs_gpus = 1
[[cases]]
command = { file = "FILE", WHICH }
dataset = "toy"
concurrency = [2]
prompts = 8
output_cap_tokens = 16
"""
Kinds = tuple[tuple[Sample, ...], ...]


def read_baseline(folder: Path, content: bytes) -> None:
    path = folder / "case.json"
    path.write_bytes(content)
    baseline = load_baseline(path)
    assert baseline is not None
    for metric in METRICS.values():
        baseline.launch_values(metric)
        baseline.expected_value(metric)
    load_acceptance(baseline.acceptance)
    path.write_text(render_baseline(baseline))
    assert load_baseline(path) == baseline


def read_published(folder: Path, content: bytes) -> None:
    (folder / "published").mkdir(exist_ok=True)
    (folder / "published/one.json").write_bytes(content)
    load_published(folder)


def read_tier(folder: Path, content: bytes, *, pairs: bytes | None = None) -> None:
    """Loads it, and asks its cases what anybody asks them."""
    for name in ("matrix", "models"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "models/pairs.toml").write_bytes(PAIRS.read_bytes() if pairs is None else pairs)
    (folder / "matrix/one.toml").write_bytes(content)
    tier = load_tier(folder / "matrix", "one")
    tier.unmet((80.0, 80.0))
    tier.gpus_used((80.0,))
    for case in tier.cases:
        check_allowed(case, tier.locations[case.id])
        assert case.id
        case.unmet(())


def read_pairs(folder: Path, content: bytes) -> None:
    """Those of a tier that names them."""
    read_tier(folder, (MATRIX / "gpu.toml").read_bytes(), pairs=content)


def load_rows(dataset: str, path: Path) -> tuple[Prompt, ...]:
    prompt_set = dataset_named(dataset)
    if path.suffix == ".parquet":
        # A broken file may crash Arrow.
        return read_published_file(path, prompt_set).prompts
    return load_published_rows(path, prompt_set).prompts


def read_prompts(
    load: Callable[[Path], tuple[Prompt, ...]], name: str, folder: Path, content: bytes
) -> None:
    path = folder / name
    path.write_bytes(content)
    prompts = load(path)
    assert prompts
    prompts_sha256(interleaved(prompts))


def read_record(folder: Path, content: bytes) -> None:
    """What `specreg prepare` wrote beside the prompts."""
    prompts, record = paths_of(folder, "gsm8k")
    shutil.copyfile(TOY, prompts)
    record.write_bytes(content)
    gsm8k = dataset_named("gsm8k")
    load_prompts(gsm8k, root=builders.ROOT, vocabulary=lambda: 1, data_dir=folder)


def baselines() -> Iterable[Sample]:
    for path in sorted(BASELINES.glob("cpu-*/*.json")):
        yield Sample(content=path.read_bytes(), wrong=json_of, read=read_baseline)
    for path in sorted(BASELINES.glob("published/*.json")):
        yield Sample(content=path.read_bytes(), wrong=json_of, read=read_published)


def matrices() -> Iterable[Sample]:
    for path in sorted(MATRIX.glob("*.toml")):
        yield Sample(content=path.read_bytes(), wrong=toml_of, read=read_tier)
    yield Sample(content=PAIRS.read_bytes(), wrong=toml_of, read=read_pairs)


def read_server(name: str, which: str, folder: Path, content: bytes) -> None:
    """A file that starts a server, which a tier names."""
    (folder / "matrix").mkdir(exist_ok=True)
    (folder / "matrix" / name).write_bytes(content)
    tier = TIER_OF_SERVER.replace("FILE", name).replace("WHICH", which)
    read_tier(folder, tier.encode())


def servers() -> Iterable[Sample]:
    """Files of Compose and Kubernetes, as YAML and as JSON."""
    for text, which in (
        (SGLANG_COMPOSE, 'service = "sglang"'),
        (VLLM_KUBERNETES, 'container = "vllm"'),
        (VLLM_KUBERNETES, 'container = "args"'),
    ):
        reading = functools.partial(read_server, "server.yaml", which)
        yield Sample(content=text.encode(), wrong=bytes_of, read=reading)
        items = list(YAML(typ="safe").load_all(text))
        # `kubectl get -o json` writes several things as a list of them.
        document = items[0] if len(items) == 1 else {"kind": "List", "items": items}
        reading = functools.partial(read_server, "server.json", which)
        yield Sample(content=json.dumps(document).encode(), wrong=json_of, read=reading)


def datasets(folder: Path) -> Iterable[Sample]:
    """Prompts in each form, and the record of a prepared set."""
    toy = load_prompt_file(TOY)[:20]
    rows: list[dict[str, object]]
    load: Callable[[Path], tuple[Prompt, ...]]
    for dataset in ("", "mt-bench", "sharegpt", "humaneval", "gsm8k", "genai-perf"):
        if dataset:
            rows = builders.rows_in(dataset, toy)
            load = functools.partial(load_rows, dataset)
        else:
            rows = [msgspec.to_builtins(prompt) for prompt in toy]
            load = load_prompt_file
        for name, wrong in (("rows.jsonl", rows_of), ("rows.json", json_of)):
            path = builders.write_lines(folder / name, rows if wrong is rows_of else [rows])
            reading = functools.partial(read_prompts, load, name)
            yield Sample(content=path.read_bytes(), wrong=wrong, read=reading)
    parquet = folder / "rows.parquet"
    rows = [{"question": prompt.turns[0], "answer": "no"} for prompt in toy]
    pq.write_table(pa.Table.from_pylist(rows), parquet)
    load = functools.partial(load_rows, "gsm8k")
    reading = functools.partial(read_prompts, load, "rows.parquet")
    yield Sample(content=parquet.read_bytes(), wrong=bytes_of, read=reading)
    rows_path = builders.write_lines(folder / "gsm8k.jsonl", rows)
    prepare(dataset_named("gsm8k"), data_dir=folder / "data", user_file=rows_path)
    record = paths_of(folder / "data", "gsm8k")[1].read_bytes()
    yield Sample(content=record, wrong=json_of, read=read_record)


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Kinds:
    folder = tmp_path_factory.mktemp("sound")
    return tuple(baselines()), tuple(matrices()), tuple(servers()), tuple(datasets(folder))


def test_what_is_sound_is_read(kinds: Kinds, tmp_path: Path) -> None:
    """Otherwise no case would get as far as what is wrong in it."""
    # A record is only sound beside the prompts that it was written with.
    samples = (sample for sample in itertools.chain(*kinds) if sample.read is not read_record)
    read_all_sound(samples, tmp_path)


def test_any_file_ends_in_words_or_in_a_reading(
    numbers: range, kinds: Kinds, tmp_path: Path
) -> None:
    try_all(numbers, kinds, tmp_path)
