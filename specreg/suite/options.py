"""The options of a run, each declared once, and hints for mistyped ones."""

import argparse
import dataclasses
import difflib
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from specreg.core.errors import SpecregError

# The bounds of the numbers that a user gives, or that a merge reads from another machine's plan.
MAX_GPU_MEMORY_GIB = 1e6
MAX_LAUNCHES_ASKED = 100
MAX_PROMPTS_ASKED = 1_000_000
MAX_READY_S = 100_000
MAX_RECORD_MINUTES = 100_000
MAX_SHARDS = 10_000
LAUNCHES_TO_RECORD = 3
"""How many launches of each server a recording measures unless an option says otherwise."""
Inconclusive = Literal["nights", "fail", "warn", "warn-speed"]
"""What a test does if its metric is INCONCLUSIVE."""
WITHOUT_HISTORY = "none"
"""The value of --specreg-history with which no history is read or written."""
# `I/N`, `list` or `list/N`. A number alone matches too, and `Options.part` refuses it.
_SHARD = re.compile(r"(?:(?P<list>list)|(?P<number>\d{1,5}))(?:/(?P<shards_in_all>\d{1,5}))?")


def _option(
    text: str,
    default: object = None,
    *,
    flag: str = "",
    is_repeated: bool = True,
    **arguments: object,
) -> Any:  # noqa: ANN401 - like dataclasses.field
    """Declare an option, as a field of `Options`.

    Args:
        text: the help.
        default: the value if the user doesn't give the option.
        flag: the flag; empty if it is `--specreg-` and then the name of the field.
        is_repeated: True if a command that runs the same cases again needs the option.
        arguments: further arguments of argparse's `add_argument`.
    """
    if default is False:
        arguments["action"] = "store_true"
    arguments |= {"default": default, "help": text}
    metadata = {"flag": flag, "is_repeated": is_repeated, "argparse": arguments}
    return dataclasses.field(default=default, metadata=metadata)


_once = functools.partial(_option, is_repeated=False)
"""Declares an option that is left out of the commands that run the same cases again."""


class ShardChoice(NamedTuple):
    """The part of a run that the user has chosen.

    Attributes:
        number: the number of the shard, from 1; 0 to list all shards and run none.
        shards_in_all: how many shards there are; 0 for one shard for each server group.
    """

    number: int
    shards_in_all: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a run. Each field is an option of the command line, with its help."""

    tier: str | None = _once("the tier to run (default: gpu on a machine with a GPU, else cpu)")
    require_tier: bool = _once(
        "fail at once if the machine lacks what the tier needs (default: skip those cases)",
        default=False,
    )
    update_baselines: bool = _once(
        "record baselines of the cases that run, and of no others",
        default=False,
        flag="--update-baselines",
    )
    reason: str | None = _once(
        "why baselines are recorded (default: the engine, its version and the commit)",
        flag="--reason",
    )
    launches: int | None = _once(
        "how many launches of each server to measure, 1 or more (default: 3 to record, else 1)",
        type=int,
    )
    record_minutes: float = _once(
        "how many minutes may go into launches beyond the first three while recording, so that"
        " later runs can detect smaller losses; without effect together with --specreg-launches",
        10.0,
        type=float,
    )
    num_prompts: int | None = _option(
        "how many prompts each case replays, spread over their categories (default: the number in"
        " the tier); acceptance is still compared, prompt by prompt, but speed isn't",
        flag="--num-prompts",
        type=int,
    )
    inconclusive: str = _option(
        "when the test of an INCONCLUSIVE metric passes (nights: with a remark, if some number of"
        " nights decides it; warn: always; warn-speed: always for speed and power, never for"
        " acceptance; fail: never)",
        "nights",
        choices=get_args(Inconclusive),
    )
    shard: str | None = _once(
        "run one part of the tier here, and others elsewhere: 2/4 is the second of four parts that"
        " take about equally long, and specreg merge joins their reports. list/4 shows the four"
        " parts; list shows which cases share a server and stay together",
        metavar="I/N|list",
    )
    oracle: bool = _option(
        "check each engine's steps against those that its models give; downloads torch, 1 to 5 GB",
        default=False,
    )
    matrix: str = _option("the folder of the tiers, relative to the root", "fixtures/matrix")
    baselines: str = _option("the folder of the baselines, relative to the root", "baselines")
    runs: str = _option(
        "the folder of the runs' logs, ledgers and reports, relative to the root", ".specreg/runs"
    )
    history: str | None = _option(
        "the folder of the history, which has a line for each case and run, relative to the root"
        " (default: history, beside the folder of the runs); give none to judge by baselines alone"
    )
    no_wait: bool = _option(
        "fail at once if another run of specreg has the GPU (default: wait until it ends)",
        default=False,
    )
    resume: bool = _once(
        "continue the last run that was cut off, without measuring again what it finished",
        default=False,
    )
    engine_version: str | None = _option(
        "the version of the engine to install, such as 0.31.0 (default: the version that specreg"
        " is tested with)"
    )
    engine_python: str | None = _option(
        "a Python interpreter whose environment has the engine (default: specreg makes an"
        " environment with uv and keeps it)"
    )
    image: str | None = _option(
        "the container image that all servers run in, such as vllm/vllm-openai:v0.33.0 (default:"
        " that of each case; without one a server runs on the machine itself)"
    )
    container_runtime: str | None = _option(
        "the program that runs containers, with flags of its own if need be (default:"
        " SPECREG_CONTAINER_RUNTIME, else the first of docker, podman and apptainer that works)",
        metavar="COMMAND",
    )
    gpu_memory_gib: float | None = _option(
        "the memory of each GPU in GiB, if its driver doesn't report it (default: the machine's"
        " memory, for a GPU that is part of a processor; else it isn't checked whether cases fit)",
        flag="--specreg-gpu-memory",
        metavar="GIB",
        type=float,
    )
    attach: str | None = _option(
        "the URL of a running server to measure, http://HOST:PORT or https://HOST/PATH/v1; choose"
        " its cases with -k"
    )
    control_url: str | None = _option(
        "with --specreg-attach, the URL of a running server without speculation, beside which the"
        " speedup is measured and losslessness is judged"
    )
    metrics_url: str | None = _option(
        "with --specreg-attach, the page of the server's counters, http://HOST:PORT/metrics, if it"
        " is elsewhere; those of several replicas, separated by commas, are added up",
        metavar="URL[,URL…]",
    )
    url_token_env: str | None = _option(
        "with --specreg-attach, the name of the variable that has the token of these servers; each"
        " request to their URLs carries it, and no redirection takes it elsewhere",
        metavar="NAME",
    )
    url_ca_file: str | None = _option(
        "with --specreg-attach, a file in PEM form with the authority of the servers' certificates",
        metavar="FILE",
    )
    url_environment: str | None = _option(
        "with --specreg-attach, the environment of the servers: the folder of the baselines with"
        " which acceptance and the speedup beside a control are compared (default: unknown)",
        metavar="NAME",
    )
    engine: str | None = _option("the engine whose cases to run (default: all)", flag="--engine")
    ready_within_s: float = _option(
        "how many seconds a server may take from its start to its first token", 600.0, type=float
    )

    @property
    def part(self) -> ShardChoice | None:
        """The part of the run that the user has chosen; None for the whole run.

        Raises:
            SpecregError: the text isn't `I/N`, `list` or `list/N`, or there is no such shard.
        """
        if self.shard is None:
            return None
        match = _SHARD.fullmatch(self.shard)
        if match is None:
            raise _shard_error(self.shard)
        choice = ShardChoice(
            number=int(match["number"] or 0), shards_in_all=int(match["shards_in_all"] or 0)
        )
        if choice.shards_in_all > MAX_SHARDS:
            raise _shard_error(self.shard, f" and N up to {MAX_SHARDS}")
        if match["list"] is None and not 1 <= choice.number <= choice.shards_in_all:
            raise _shard_error(self.shard)
        return choice

    @property
    def lists_shards(self) -> bool:
        """True if the shards are only listed, and nothing is run.

        Raises:
            SpecregError: as `part` does.
        """
        return self.part is not None and self.part.number == 0


def _shard_error(shard: str, limit: str = "") -> SpecregError:
    """Return the error for a text that doesn't name a shard."""
    needed = f"--specreg-shard '{shard}': isn't a shard, needed I/N with I from 1 to N{limit}"
    return SpecregError(f"{needed}; give 1/4 for the first of four, or list/4 to see all")


def flag_of(field: dataclasses.Field[Any]) -> str:
    """Return the flag that the user types for an option."""
    return field.metadata["flag"] or f"--specreg-{field.name.replace('_', '-')}"


def flag_named(name: str) -> str:
    """Return the flag of the option that is a field of this name."""
    (field,) = (field for field in dataclasses.fields(Options) if field.name == name)
    return flag_of(field)


def options_typed(arguments: Sequence[str]) -> Options:
    """Return specreg's options among the arguments of pytest, and ignore all other arguments.

    Raises:
        SpecregError: an option has a value that it can't have.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for field in dataclasses.fields(Options):
        parser.add_argument(flag_of(field), dest=field.name, **field.metadata["argparse"])

    try:
        typed, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise SpecregError(f"{error}; see pytest --help") from error

    return Options(**vars(typed))


def hints_of(arguments: Sequence[str]) -> dict[str, str]:
    """Return hints for mistyped options, which pytest prints below its error.

    Returns:
        The options that the user may have meant, under a label; empty if no option is mistyped, or
        if none is similar.
    """
    flags = [flag_of(field) for field in dataclasses.fields(Options)]
    names = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    unknown = [name for name in names if name not in flags]
    matches = [difflib.get_close_matches(name, flags, n=1) for name in unknown]
    suggestions = [match[0] for match in matches if match]
    return {"did you mean": ", ".join(suggestions)} if suggestions else {}


def options_to_repeat(options: Options, tier: str | None) -> tuple[str, ...]:
    """Return the arguments that run the same cases again.

    Options with their default values are left out, and so are options that belong to one run only,
    such as a reason.

    Args:
        options: the options of the run.
        tier: the tier to name; None if it is the machine's default.
    """
    arguments = [] if tier is None else [f"--specreg-tier={tier}"]
    for field in dataclasses.fields(Options):
        value = getattr(options, field.name)
        if not field.metadata["is_repeated"] or value == field.default:
            continue
        flag = flag_of(field)
        arguments.append(flag if value is True else f"{flag}={value}")

    return tuple(arguments)
