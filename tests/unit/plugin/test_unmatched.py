"""What may have been meant by an expression that selects no test."""

import pytest

from specreg.plugin.unmatched import corrected_expression

NAMES = ("test_power.py::test_power[vllm-eagle3-tiny-toy-c4-power_w]",)
PARTS = ("eagle3", "tiny", "vllm-eagle3-tiny-toy-c4", "power_w")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("eagel3", "eagle3"),
        ("Eagle3 and powr_w", "Eagle3 and power_w"),
        ("not (eagel3 or tinny)", "not (eagle3 or tiny)"),
        ("vllm-eagle3-tiny-toy-c5", "vllm-eagle3-tiny-toy-c4"),
        ("llama70b", ""),
        ("eagel3 and llama70b", ""),
        ("eagle3 and not eagle3", ""),
        ("", ""),
    ],
)
def test_each_word_that_no_test_has_is_replaced_by_a_similar_one(typed: str, meant: str) -> None:
    assert corrected_expression(typed, NAMES, PARTS) == meant
