"""The truth of the scripted server. In: a prompt and a Script. Out: the Steps it will take.

Everything here is pure and starts nothing, so that a test computes what a measurement must say:

    truth = steps_of(chat_prompt(messages), script, num_speculative_tokens=3, max_tokens=48)
    assert measured.accepted == truth.accepted_tokens

The tokens depend on what was said before them alone, as a model's; the steps depend on the
speculation and the script too.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum, auto
from pathlib import Path
from typing import Annotated

import msgspec

from . import __version__
from .steps import END_TOKEN_ID, FIRST_WORD_ID, VOCABULARY, FinishReason, Steps

VARIABLE = "SCRIPTED_SERVER"
"""The environment variable that names the script's file."""
_DIRECTIVE = re.compile(r"accepted=([\d,]*) tokens=(\d+)")
_LENGTH_TOKENS = 24, 64
"""The least and the most of an answer, its end token included."""
MAX_MODEL_TOKENS = 1024
"""Prompt and completion together; the default of `max_tokens` fills it."""


class Fault(StrEnum):
    """A known fault. Those of a request begin after `fault_after_requests` requests."""

    EXIT_AT_START = auto()  # Prints `exit_log` and exits with `exit_status` before it listens
    NEVER_READY = auto()  # `/health` answers 503 and nothing is generated
    SURVIVOR = auto()  # Has a child in a session of its own that ignores SIGTERM, as a worker
    DAEMON = auto()  # Has a daemon that ignores SIGTERM: its child's child, whose parent has ended
    HEALTHY_BUT_MUTE = auto()  # `/health` answers 200 and nothing is generated
    CRASH_MID_RUN = auto()  # Exits with `exit_status` halfway through one answer
    SPEC_DISABLED = auto()  # Nothing is drafted: counters stay, records say 0 steps
    COUNTERS_RENAMED = auto()  # The counters of the speculation have another prefix, from the start
    COUNTERS_MISSING = auto()  # There is no page of counters, from the start
    COUNTERS_NAN = auto()  # The page says NaN for every counter, from the start
    COUNTERS_RESET = auto()  # All counters begin again at 0, once, when a request arrives
    COUNTERS_TOO_HIGH = auto()  # Another client's request is counted with each request
    HTTP_500 = auto()  # One request is refused with 500
    HTTP_429 = auto()  # One request is refused with 429
    TRUNCATED_STREAM = auto()  # One connection closes halfway, with no finish and no usage
    HALF_OPEN = auto()  # One stream says nothing from halfway on, its connection stays open
    SLOW_FIRST_TOKEN = auto()  # The first token of one request comes after a minute
    ENDLESS_LINE = auto()  # A line of one stream goes on and on from halfway
    ERROR_EVENT = auto()  # HTTP 200, and halfway through each answer an event called an error
    ERROR_BODY = auto()  # HTTP 200, and the error is the body of each answer, which is no stream
    WRONG_JSON = auto()  # One event of one stream is no JSON
    NO_USAGE = auto()  # Answers come without usage, and so without the record of their speculation
    MERGED_CHUNKS = auto()  # Two steps come in one chunk, after the chunk of the prefill
    CHANGED_TOKEN = auto()  # Speculation changes a token of one answer to one never said there


class Stream(StrEnum):
    """How a front end cuts the steps of an answer into chunks."""

    STEPS = auto()
    TOKENS = auto()
    MIXED = auto()


LASTING = frozenset(
    {
        Fault.NEVER_READY,
        Fault.HEALTHY_BUT_MUTE,
        Fault.SPEC_DISABLED,
        Fault.COUNTERS_TOO_HIGH,
        Fault.ERROR_EVENT,
        Fault.ERROR_BODY,
        Fault.NO_USAGE,
        Fault.MERGED_CHUNKS,
    }
)
"""Faults that hit every request once they have begun; the others of a request hit one."""


BEFORE_ROUNDS = 1 + 7
"""Generation requests before the rounds of a case at c1: the probe of the start, and the fewest
batches that a warm-up takes."""
SLOWING = tuple(1 + number / 4 for number in range(BEFORE_ROUNDS))
"""As `stretches`: steps get slower before the rounds, so no chance makes the warm-up longer."""


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server does; the file that SCRIPTED_SERVER names holds it as JSON.

    Attributes:
        version: what it says of its version.
        acceptance_probs: per position, the conditional acceptance, 0..1; the last one goes on.
        seed: changes the draws of the steps and never the text.
        prefill_ms: from the request to its first token.
        step_ms: from step to step.
        queue_ms: how long each request waited, as the server's counters say; nothing waits for it.
        stretches: times `step_ms`, for the first generation requests one by one; then it is 1.
        falls_per_s_frac: of the steps that would accept something, how many more accept nothing
            with each second of its life: AL - 1 falls in a line, until it is 0.
        slows_per_s_frac: by how much more steps are stretched with each second of its life.
        thought_tokens: the first so many tokens of a chat's answer are its thought, which comes
            apart from the answer.
        otherwise_from_token: with speculation each answer has other tokens from this one on, which
            counts from 1; 0 for the same tokens as without.
        stream: what comes at once: the tokens of a step, one token, or by turns one token, a step
            and two steps.
        ranks: how many ranks count what the server does, each in series of its own.
        counted_by_ranks: a part of the name of each counter that they have; empty for all.
        loses_text: whether a chunk has the text of its last token only.
        undrafted_frac: of the steps, how many draft nothing; they emit one token and count nowhere.
        sampling_defaults: the parameters for which the server has defaults; it accepts each draft
            of a request that leaves one out.
        held_bytes: what the server holds from its start, as a real one holds its model.
        leak_bytes: what each generation request leaves behind.
        ready_after_s: from the start to listening, or to `exit_at_start`.
        fault: what goes wrong.
        fault_after_requests: the generation requests, warm-up too, that come before the fault.
        exit_status: for `exit_at_start` and `crash_mid_run`.
        exit_log: printed by `exit_at_start`.
        survivor_s: how long the child of `survivor` or `daemon` lives when nothing ends it.
        ignore_sigterm: whether SIGTERM doesn't end the server.
        ignore_sigint: whether Ctrl-C doesn't, either.
        flood_bytes: of noise, which it prints before it listens.
        says_secrets: whether it prints its variables and arguments, as a debugger would.
        shares_memory: whether it leaves what it has in /dev/shm.
    """

    version: str = __version__
    acceptance_probs: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)] = (0.8, 0.7, 0.6)
    seed: int = 0
    prefill_ms: float = 1.0
    step_ms: float = 3.0
    queue_ms: float = 2.0
    stretches: tuple[float, ...] = ()
    falls_per_s_frac: float = 0.0
    slows_per_s_frac: float = 0.0
    thought_tokens: int = 0
    otherwise_from_token: int = 0
    stream: Stream = Stream.STEPS
    ranks: int = 1
    counted_by_ranks: str = ""
    loses_text: bool = False
    undrafted_frac: float = 0.0
    sampling_defaults: tuple[str, ...] = ()
    held_bytes: int = 0
    leak_bytes: int = 0
    ready_after_s: float = 0.0
    fault: Fault | None = None
    fault_after_requests: int = 0
    exit_status: int = 1
    exit_log: str = "RuntimeError: the script says so"
    survivor_s: float = 60.0
    ignore_sigterm: bool = False
    ignore_sigint: bool = False
    flood_bytes: int = 0
    says_secrets: bool = False
    shares_memory: bool = False

    def fault_of(self, number: int) -> Fault | None:
        """The fault that hits the generation request of this number, counted from 1."""
        first = self.fault_after_requests + 1
        hit = number >= first if self.fault in LASTING else number == first
        return self.fault if hit else None

    def stretch(self, number: int) -> float:
        """By how much the steps of the generation request of this number, from 1, take longer."""
        return self.stretches[number - 1] if number <= len(self.stretches) else 1.0

    def aged(self, life_s: float) -> "Script":
        """What it does after so many seconds: the first position is accepted the less."""
        if not self.falls_per_s_frac:
            return self
        first, *later = self.acceptance_probs
        # The last one goes on, so that it has to be there twice.
        frac_left = first * max(0.0, 1 - self.falls_per_s_frac * life_s)
        return msgspec.structs.replace(self, acceptance_probs=(frac_left, *(later or (first,))))

    def probability(self, position: int) -> float:
        """The chance that a position, counted from 0, is accepted when all before it were."""
        return self.acceptance_probs[min(position, len(self.acceptance_probs) - 1)]


DEFAULTS = Script()


def load_script(environment: Mapping[str, str]) -> Script:
    """The script that SCRIPTED_SERVER names, or the defaults where it names none."""
    path = environment.get(VARIABLE)
    return msgspec.json.decode(Path(path).read_bytes(), type=Script) if path else DEFAULTS


def record_script(script: Script, folder: Path) -> dict[str, str]:
    """Writes a script into `folder` and gives the environment that starts a server with it."""
    path = folder / "scripted_server.json"
    path.write_bytes(msgspec.json.encode(script))
    return {VARIABLE: str(path), "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


def chat_prompt(messages: Iterable[Mapping[str, str]]) -> str:
    """The prompt text that the server makes of a chat."""
    return "".join(f"<{turn.get('role')}>{turn.get('content')}\n" for turn in messages)


def prompt_token_ids(prompt: str) -> tuple[int, ...]:
    """One begin token and one token per word."""
    return (1, *(_word(_share(word, "prompt")) for word in prompt.split()))


def steps_of(
    prompt: str,
    script: Script = DEFAULTS,
    *,
    num_speculative_tokens: int = 0,
    max_tokens: int | None = None,
    ignore_eos: bool = False,
) -> Steps:
    """All that the server will do for a prompt; `max_tokens` absent fills the context.

    A prompt that says `accepted=3,0,1 tokens=6` decides itself what its steps accept, and how many
    tokens are delivered of the eight that they emit.
    """
    if directed := _DIRECTIVE.search(prompt):
        return Steps(
            draft_tokens=num_speculative_tokens,
            accepted=tuple(int(number) for number in directed[1].split(",") if number),
            token_ids=_continued(prompt, int(directed[2])),
            finish_reason=FinishReason.LENGTH,
        )
    tokens_left = max(MAX_MODEL_TOKENS - len(prompt_token_ids(prompt)), 1)
    room = tokens_left if max_tokens is None else max_tokens
    least, most = _LENGTH_TOKENS
    natural = least + int(_share(prompt, "length") * (most - least + 1))
    stops = natural <= room and not ignore_eos
    tokens = _continued(prompt, natural - 1 if stops else room)
    accepted, undrafted = _accepted(prompt, script, num_speculative_tokens, len(tokens) + stops)
    return Steps(
        draft_tokens=num_speculative_tokens,
        accepted=accepted,
        token_ids=(*tokens, END_TOKEN_ID) if stops else tokens,
        finish_reason=FinishReason.STOP if stops else FinishReason.LENGTH,
        undrafted=undrafted,
    )


def _continued(prompt: str, tokens: int) -> tuple[int, ...]:
    """What follows: each token hangs on all before it, whether in the prompt or said."""
    generated: list[int] = []
    so_far = hashlib.sha256(prompt.encode())
    for _ in range(tokens):
        generated.append(_word(_fraction(so_far.digest())))
        so_far.update(f" {generated[-1]}".encode())
    return tuple(generated)


def _accepted(
    prompt: str, script: Script, drafted: int, completion_tokens: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draws steps until the completion is full; the last one may go past its end.

    Gives what the steps with a draft accept, and the places of those without.
    """
    accepted: list[int] = []
    undrafted: list[int] = []
    emitted = 1
    while drafted and emitted < completion_tokens:
        position = len(accepted) + len(undrafted)
        if _share(prompt, script.seed, "undrafted", position) < script.undrafted_frac:
            undrafted.append(position)
            emitted += 1
            continue
        accepted.append(_accepted_in(prompt, script, drafted, len(accepted)))
        emitted += accepted[-1] + 1
    return tuple(accepted), tuple(undrafted)


def _accepted_in(prompt: str, script: Script, drafted: int, step: int) -> int:
    for position in range(drafted):
        if _share(prompt, script.seed, step, position) >= script.probability(position):
            return position
    return drafted


def _word(share: float) -> int:
    return FIRST_WORD_ID + int(share * len(VOCABULARY))


def _share(text: str, *purpose: object) -> float:
    """A number in [0, 1) that depends on the text and the purpose alone."""
    return _fraction(hashlib.sha256(f"{purpose}{text}".encode()).digest())


def _fraction(digest: bytes) -> float:
    return int.from_bytes(digest[:6]) / 2**48
