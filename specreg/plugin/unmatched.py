"""Say that the user's selection matches no test of the suite, and what may have been meant."""

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence

import pytest

from specreg.core.commands import select_command, specreg_command
from specreg.plugin.state import CONTEXT, Refusal
from specreg.plugin.suite_tests import case_id_of

_OPERATORS = {"and", "or", "not"}
_WORD = re.compile(r"[\w.+-]+")
"""A name in an expression of -k."""


def nothing_matched(config: pytest.Config, collected: Sequence[pytest.Item]) -> Refusal:
    """Say that none of the collected tests of the suite is selected.

    If a name in the expression of -k is mistyped, the text ends with the corrected command.
    """
    context = config.stash[CONTEXT]
    expression: str = config.option.keyword
    corrected = corrected_expression(
        expression, (item.nodeid for item in collected), _parts_of(collected)
    )
    typed = " ".join(f"{flag} '{text}'" for flag, text in _selectors(config))
    text = f"{typed or 'this selection'}: matches no test of tier '{context.tier.name}'"
    if corrected:
        options = context.store.options
        if context.is_recording:
            options = (*options, "--update-baselines")
        text += f"; did you mean this?\n  {select_command(corrected, options)}"
    else:
        text += f"; list its cases with: {specreg_command('matrix', '--tier', context.tier.name)}"

    return Refusal(text, int(pytest.ExitCode.NO_TESTS_COLLECTED))


def _selectors(config: pytest.Config) -> list[tuple[str, str]]:
    """Return the expressions with which the user selects tests, and the flag of each."""
    expressions = (("-k", config.option.keyword), ("-m", config.option.markexpr))
    return [(flag, expression) for flag, expression in expressions if expression]


def _parts_of(items: Iterable[pytest.Item]) -> set[str]:
    """Return the names that a user may mean: those of cases, and the words in them."""
    parts: set[str] = set()
    for case_id in {case_id_of(item) for item in items}:
        words = case_id.split("-")
        for first, last in itertools.combinations(range(len(words) + 1), 2):
            parts.add("-".join(words[first:last]))
    parts.update(getattr(item, "originalname", "") for item in items)
    return parts


def corrected_expression(expression: str, names: Iterable[str], parts: Iterable[str]) -> str:
    """Replace the words of an expression that are in no name by similar ones.

    Args:
        expression: the expression of -k.
        names: the names of all tests.
        parts: what a word may stand for.

    Returns:
        The corrected expression; empty if no word is mistyped, or if nothing is similar to one.
    """
    all_names = "\n".join(names).lower()
    known = sorted(parts)
    corrections = {}
    for word in set(_WORD.findall(expression)) - _OPERATORS:
        if word.lower() in all_names:
            continue
        matches = difflib.get_close_matches(word, known, n=1)
        if not matches:
            return ""
        corrections[word] = matches[0]

    if not corrections:
        return ""
    return _WORD.sub(lambda match: corrections.get(match[0], match[0]), expression)
