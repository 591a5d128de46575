"""What is said of the process that reads the models when it doesn't answer."""

from specreg.foresight import explain_end
from specreg.questions import REFUSED

PROGRESS = "Loading weights: 100%|##########| 47/47"


def test_a_refusal_is_its_last_line() -> None:
    assert explain_end(REFUSED, [PROGRESS, "draft 'x': too small; choose another"]) == (
        "draft 'x': too small; choose another"
    )


def test_one_that_was_killed_is_told_from_what_it_last_said() -> None:
    said = explain_end(-9, [PROGRESS])
    first, *_, last = said.splitlines()
    assert first == (
        "its process was killed (SIGKILL), as a machine does that runs out of memory; free some,"
        " or give the case smaller models"
    )
    assert last == PROGRESS


def test_any_other_end_is_told_with_its_last_words() -> None:
    said = explain_end(1, [f"line {number}" for number in range(30)])
    assert said.startswith("its process ended with status 1; its last words say why:\nline 15\n")
    assert said.endswith("line 29")
    assert explain_end(-15, []) == (
        "its process ended by signal 15; its last words say why:\n(nothing)"
    )
