"""A team's own test of a case, as docs/how-to/write-your-own-test.md has it."""

from tests.plugin.conftest import Suite

EXAMPLE = "docs/examples/own_test/test_first_token.py"


def test_the_example_of_an_own_test_measures_a_case_and_judges_by_itself(suite: Suite) -> None:
    done = suite.run(EXAMPLE, "-q", "-rA", "-k", "eagle3 and toy-c1 and acceptance_length")
    assert done.returncode == 0, done.stdout
    passed = f"PASSED {EXAMPLE}::test_the_first_token_comes_within_200_ms[vllm-eagle3-tiny-toy-c1"
    assert passed in done.stdout
