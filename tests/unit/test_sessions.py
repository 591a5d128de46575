"""Every session of nox has a group and a row in CONTRIBUTING.md that says what runs it."""

import ast
import re
from collections.abc import Mapping

from ruamel.yaml import YAML

from tests.unit import builders

ROOT = builders.ROOT
CI_RUN = (ROOT / ".ci/run").read_text()
README = (ROOT / "README.md").read_text()
GROUPS = ("use", "develop", "engines", "stress", "upkeep")
TYPED = re.compile(r"\bnox -s (\w+)")


def groups_of_sessions() -> Mapping[str, str]:
    """The group of each session: the tag of its decorator."""
    groups = {}
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            (decorator,) = node.decorator_list
            assert isinstance(decorator, ast.Call), node.name
            (group,) = ast.literal_eval(decorator.keywords[0].value)
            groups[node.name] = group
    return groups


def sessions_of_workflow(name: str) -> set[str]:
    """The sessions that a workflow types, those of its matrix included."""
    path = ROOT / ".github/workflows" / name
    sessions = set(TYPED.findall(path.read_text()))
    jobs = YAML(typ="safe").load(path)["jobs"]
    matrix = jobs.get("nox", {}).get("strategy", {}).get("matrix", {})
    sessions.update(matrix.get("session", []))
    sessions.update(entry["session"] for entry in matrix.get("include", []))
    return sessions


def test_the_table_of_sessions_says_what_runs_each() -> None:
    runners = {".ci/run": set(TYPED.findall(CI_RUN))}
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        runners[path.name] = sessions_of_workflow(path.name)
    expected = {}
    for session, group in groups_of_sessions().items():
        names = [name for name, sessions in runners.items() if session in sessions]
        run_by = ", ".join(f"`{name}`" for name in names) or "by hand"
        expected[session] = (group, run_by)

    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    assert {session: (group, run_by) for session, group, run_by in rows} == expected


def test_sessions_are_listed_group_by_group() -> None:
    """`nox -l` keeps the order of the file."""
    order = list(dict.fromkeys(groups_of_sessions().values()))
    assert tuple(order) == GROUPS
    listed = list(groups_of_sessions().values())
    assert listed == sorted(listed, key=GROUPS.index)


def test_ci_types_the_line_for_contributors_word_for_word() -> None:
    """Then it runs the suite, last of all."""
    (line,) = re.findall(r"^    (.+ -s tests)$", README, re.MULTILINE)
    assert f"\n({line})\n" in CI_RUN
    assert CI_RUN.strip().splitlines()[-1].startswith("nox -s cpu_perf")
