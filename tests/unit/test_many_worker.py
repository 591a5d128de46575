"""A worker: what is measured elsewhere must be what the run means."""

import dataclasses
import sys
from pathlib import Path

import msgspec
import pytest

from specreg.many.errand import Asked, Ended, Errand, Order, Said, Terms
from specreg.many.places import Need
from specreg.many.worker import _suite, do
from specreg.matrix import Case
from tests.unit import builders

SPEC = dataclasses.replace(
    builders.PLAIN_SPEC, target="fixtures/models/tiny/target", engine_env=(("X", "1"),)
)
CASE: Case = dataclasses.replace(builders.CASE, server=SPEC, control=None, prompts=3)


def order(folder: Path, **changes: str) -> Order:
    """To measure the case, where its key has these words; nothing can be started."""
    asked = Asked(case=CASE, key=None, metrics=frozenset())
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
    cases = (msgspec.structs.replace(asked, key=key),)
    return msgspec.structs.replace(plain, errand=msgspec.structs.replace(errand, cases=cases))


def ended(one: Order) -> tuple[Ended, list[Said]]:
    """How it ended, and what was said before."""
    said: list[Said] = []
    return do(one, said.append), said


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("files_sha256", "its prompts or models on '.*' aren't those of the run; prepare the same"),
        ("engine", "its engine on '.*' is '.*', the run's is 'other'; install the same there"),
    ],
)
def test_what_is_not_that_of_the_run_is_named_before_anything_starts(
    tmp_path: Path, field: str, words: str
) -> None:
    found, said = ended(order(tmp_path, **{field: "other"}))
    assert found.failure is not None
    with pytest.raises(Exception, match=f"^case '{CASE.id}': {words}"):
        raise found.failure.error()
    assert said == []
    assert not (tmp_path / "logs").exists()


def test_on_the_runs_own_machine_nobody_looks(tmp_path: Path) -> None:
    one = order(tmp_path, files_sha256="other")
    found, _ = ended(msgspec.structs.replace(one, checks_files=False))
    assert found.failure is None or "aren't those of the run" not in found.failure.message
