"""How many cases are tried: blocks of numbers, each of which is the seed of one case."""

import pytest

_CASES = 250
_BLOCK = 50


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz", "what nobody would send")
    group.addoption("--cases", type=int, default=_CASES, help="how many of each kind, 250")
    group.addoption("--first", type=int, default=0, help="the number of the first one, 0")
    group.addoption("--only", type=int, default=None, help="the one of this number")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives a test its numbers, some at a time, so that several processes share them."""
    if "numbers" not in metafunc.fixturenames:
        return
    only = metafunc.config.getoption("--only", default=None)
    cases = metafunc.config.getoption("--cases", default=_CASES)
    first = metafunc.config.getoption("--first", default=0)
    end = first + cases
    if only is not None:
        first = only
        end = only + 1
    blocks = [range(at, min(at + _BLOCK, end)) for at in range(first, end, _BLOCK)]
    metafunc.parametrize("numbers", blocks, ids=lambda block: f"{block.start}-{block.stop - 1}")
