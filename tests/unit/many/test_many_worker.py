"""A worker: what is measured elsewhere must be what the run means."""

import dataclasses
import sys
from pathlib import Path

import msgspec
import pytest

from specreg.many.errand import Asked, Ended, Errand, Order, Said, Shown, Terms
from specreg.many.places import Need
from specreg.many.worker import _suite, do
from specreg.matrix.case import Case
from specreg.measurement.journal import Key
from tests.unit import builders

SPEC = dataclasses.replace(
    builders.PLAIN_SPEC, target="fixtures/models/tiny/target", engine_env=(("X", "1"),)
)
CASE: Case = dataclasses.replace(builders.CASE, server=SPEC, control=None, prompts=3)


NO_KEY = Key(
    case="", case_id=CASE.id, launch=1, asked="all", environment="", engine="", files_sha256=""
)


def order(folder: Path, *, measures: bool = True, **changes: str) -> Order:
    """To measure the case, or only to prove it, where its key has these words; nothing starts."""
    asked = Asked(case=CASE, key=NO_KEY, metrics=frozenset())
    errand = Errand(
        name="server", launch=1, cases=(asked,), need=Need(gpus=0, timed=False), weight_tokens=1
    )
    terms = Terms(
        root=str(builders.ROOT),
        run_folder=str(folder),
        baselines=str(folder),
        environment=builders.ENVIRONMENT,
        launches=1,
        recording=False,
        on_gpu=False,
        version=None,
        python=sys.executable,
        waits=True,
        ready_within_s=0.0,
    )
    plain = Order(terms=terms, errand=errand, checks_files=True)
    key = msgspec.structs.replace(_suite(plain, lambda _: None).key(CASE, 1), **changes)
    checks = () if measures else ("lossless_frac",)
    cases = (msgspec.structs.replace(asked, key=key, measures=measures, checks=checks),)
    return msgspec.structs.replace(plain, errand=msgspec.structs.replace(errand, cases=cases))


def ended(one: Order) -> tuple[Ended, list[Said]]:
    """How it ended, and what was said before."""
    said: list[Said] = []
    return do(one, said.append), said


@pytest.mark.parametrize("task", ["measured", "proved"])
@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("files_sha256", "its prompts or models on '.*' aren't those of the run; prepare the same"),
        ("engine", "its engine on '.*' is '.*', the run's is 'other'; install the same there"),
    ],
)
def test_what_is_not_that_of_the_run_is_named_before_anything_starts(
    tmp_path: Path, field: str, words: str, task: str
) -> None:
    found, said = ended(order(tmp_path, measures=task == "measured", **{field: "other"}))
    assert found.failure is not None
    with pytest.raises(Exception, match=f"^case '{CASE.id}': {words}"):
        raise found.failure.error()
    assert said == []
    assert not (tmp_path / "logs").exists()


def test_on_the_runs_own_machine_nobody_looks(tmp_path: Path) -> None:
    one = order(tmp_path, files_sha256="other")
    found, _ = ended(msgspec.structs.replace(one, checks_files=False))
    assert found.failure is None or "aren't those of the run" not in found.failure.message


def test_what_is_to_be_said_of_its_place_is_heard_first(tmp_path: Path) -> None:
    one = msgspec.structs.replace(order(tmp_path, engine="other"), remark="few cores")
    _, said = ended(one)
    assert said == [Shown(text="few cores", stays=True)]
