"""Check all that can be checked of a gate before anything is measured."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from specreg.compare.answers import AnswerComparison
from specreg.compare.gate import Gate, SideError
from specreg.compare.judging import Rules
from specreg.compare.options import GateOptions
from specreg.compare.pairs import COMPARED, Pair, Side, groups_of, pairs_of, pinned_pairs
from specreg.core.errors import (
    DatasetError,
    EnvironmentSetupError,
    SpecregError,
    UnknownNameError,
    UnsupportedError,
)
from specreg.core.files import UNREADABLE
from specreg.matrix.case import Case, Tier
from specreg.matrix.overrides import parse_override
from specreg.matrix.prompts import check_contexts, load_case_prompts
from specreg.matrix.widening import served_models
from specreg.measurement.journal import Journal
from specreg.measurement.metrics import GATE_METRICS
from specreg.servers.provision import Provision
from specreg.servers.sources import Origin, parse_origin, provision_side
from specreg.telemetry.identity import current_environment, find_gpus

JOURNAL = "journal.jsonl"


def open_gate(options: GateOptions, tier: Tier) -> Gate:
    """Return a gate that is ready to start, or to go on.

    Raises:
        SideError: a side can't be had.
        SpecregError: something can't be measured as it is asked for; nothing was.
    """
    if options.resume and (options.out is None or not options.out.is_dir()):
        where = f"in '{options.out}'" if options.out is not None else "without a folder"
        raise UnsupportedError(f"--resume: nothing to go on with {where}; name its --out")
    folder, tolerances = options.folder_in("gates"), _tolerances(options.tolerances)
    root, on_gpu = options.root, tier.needs_gpus > 0
    origins = parse_origin(options.a), parse_origin(options.b)
    overrides = (
        tuple(map(parse_override, options.a_overrides)),
        tuple(map(parse_override, options.b_overrides)),
    )
    chosen = _chosen(options, tier, origins)
    pairs = pairs_of(tier, chosen, overrides, prompts=options.prompts, show=options.show)
    if options.pin_length_tokens is not None:
        pairs += pinned_pairs(pairs, options.pin_length_tokens, on_gpu=on_gpu)
    for spec in {case.server for pair in pairs for case in (pair.a, pair.b)}:
        served_models(root, spec)
    for pair in pairs:
        if load_case_prompts(root, pair.a) != load_case_prompts(root, pair.b):
            what = "the sides' targets would be asked other prompts; choose a dataset of texts"
            raise DatasetError(f"'{pair.id}': {what}")
    sources, installed = _sides(options, origins, pairs, on_gpu=on_gpu)
    journal = Journal(folder / JOURNAL)
    journal.hold()
    if journal.path.exists() and not options.resume:
        message = f"'{journal.path}': holds a gate already; say --resume to go on, or another --out"
        raise SpecregError(message)
    gate = Gate(
        options=options,
        tier=tier,
        folder=folder,
        sources=sources,
        installed=installed,
        groups=groups_of(pairs),
        together=not on_gpu if options.together is None else options.together,
        environment=current_environment(needs_gpus=tier.gpus_used(find_gpus().memory_gib)),
        rules=Rules(
            launches=options.launches,
            figures=sum(len(pair.deciding) for pair in pairs),
            tolerances=tolerances,
        ),
        journal=journal,
        answers=AnswerComparison(
            pairs=pairs, root=root, path=folder / "answers.json", show=options.show
        ),
    )
    if journal.path.exists():
        gate.take_over()
    return gate


def _sides(
    options: GateOptions, origins: Sequence[Origin], pairs: Sequence[Pair], *, on_gpu: bool
) -> tuple[tuple[Provision, ...], tuple[str, ...]]:
    """Where both sides come from, and what they are once their environments are made."""
    sources: list[Provision] = []
    installed = []
    side = Side.A
    try:
        for side, origin in zip(COMPARED, origins, strict=True):
            cases = [pair.of(side) for pair in pairs]
            sources.append(provision_side(origin, cases, on_gpu=on_gpu, show=options.show))
            check_contexts(options.root, cases)
        for side, source in zip(COMPARED, sources, strict=True):
            installed.append(", ".join(dict.fromkeys(source.installed(p.of(side)) for p in pairs)))
    except (UnsupportedError, EnvironmentSetupError) as error:
        message = f"side {side} ('{origins[side.is_b].text}'): {error}"
        raise SideError(side, message, started=False) from error
    return tuple(sources), tuple(installed)


def _tolerances(texts: Sequence[str]) -> Mapping[str, float]:
    """Parse `METRIC=FRACTION`: by metric the tolerated loss."""
    found = {}
    for text in texts:
        name, _, frac = text.partition("=")
        if name not in GATE_METRICS:
            raise UnknownNameError("metric", name, GATE_METRICS, f"--tolerance {text}")
        try:
            kind = Annotated[float, msgspec.Meta(gt=0, lt=1)]
            found[name] = msgspec.convert(frac, kind, strict=False)
        except UNREADABLE as error:
            message = f"--tolerance {text}: '{frac}' is no fraction between 0 and 1; 0.03 is 3 %"
            raise UnsupportedError(message) from error
    return found


def _chosen(options: GateOptions, tier: Tier, origins: tuple[Origin, Origin]) -> Sequence[Case]:
    """The cases that are named; without any those of the sides' engine that fit the GPUs."""
    unmet = dict(tier.unmet(find_gpus().memory_gib))
    if options.case_ids:
        named = [tier.named(case_id) for case_id in dict.fromkeys(options.case_ids)]
        for case in named:
            if case.id in unmet:
                raise UnsupportedError(f"{unmet[case.id]}; choose other cases with --case")
        return named
    for case in tier.cases:
        if {one.engine for one in origins} - {"", case.server.engine}:
            unmet[case.id] = f"'{case.id}' is of engine '{case.server.engine}'"
    for why in unmet.values():
        options.show(f"left out: {why}")
    found = [case for case in tier.cases if case.id not in unmet]
    if not found:
        message = (
            f"tier '{tier.name}': none of its {len(unmet)} cases can be compared,"
            f" {list(unmet.values())[-1]}; choose another --tier, or other sides"
        )
        raise UnsupportedError(message)
    return found
