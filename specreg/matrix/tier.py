"""Load a tier: the cases of a tier's file."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specreg.core.errors import MatrixError, UnknownNameError
from specreg.core.names import MAX_CASE_CHARACTERS, check_spelling, is_name
from specreg.matrix.case import Case, Tier
from specreg.matrix.commands import COMMAND, describe, merge_command, understand_command
from specreg.matrix.table_cases import as_tuple, cases_of
from specreg.matrix.tables import (
    CasesTable,
    ModelsTable,
    PairsFile,
    TierFile,
    as_toml,
    check_ending,
    convert,
    load_file,
    located_errors,
    model_pairs_of,
)

PAIRS = Path("models/pairs.toml")
"""The file of the model pairs that all tiers share, relative to the parent of the tiers' folder."""
_MAX_SHARED_FRAC = 0.5
"""The share of a GPU's memory that a server may take if its control is on the same GPU."""
_MAX_CASES = 10_000


def load_tier(folder: Path, name: str) -> Tier:
    """Return the tier that a file declares.

    The tier may use the model pairs of the file itself and those of `../models/pairs.toml`,
    relative to the folder. A pair of the file replaces a shared pair of the same name.

    Args:
        folder: the folder of the tiers.
        name: the name of the file, without its suffix.

    Raises:
        UnknownNameError: a tier, key, engine, method, dataset or model pair doesn't exist. The
            message lists those that do.
        UnsupportedError: an engine doesn't have one of the settings.
        MatrixError: the folder doesn't exist, or a file can't be decoded or is contradictory.
        SpecregError: a name has other characters than a name may have, or too many.
        DatasetError: `random-N` has more digits than allowed.
    """
    # Unlike Path's method, this returns False instead of raising for a name that is too long.
    if not os.path.isdir(folder):  # noqa: PTH112
        message = f"tiers '{folder}': no such folder; run this in the repository, or name its root"
        raise MatrixError(message)
    if name not in tier_names(folder):
        raise UnknownNameError("tier", name, tier_names(folder))

    # Read the file and the model pairs.
    path = folder / f"{name}.toml"
    file = load_file(path, TierFile)
    pairs = model_pairs_of(path, file.models)
    shared_path = folder.parent / PAIRS
    if shared_path.exists():
        shared_models = load_file(shared_path, PairsFile).models
        pairs = model_pairs_of(shared_path, shared_models) | pairs

    # Make the cases of each table.
    on_gpu = file.needs_gpus > 0
    listing = _Listing()
    commands: dict[str, tuple[str, ...]] = {}
    for number, document in enumerate(file.cases, 1):
        location = f"tier file '{path}', [[cases]] no. {number}"
        with located_errors(location):
            if isinstance(document, dict) and COMMAND in document:
                keys, commands[location] = _table_of_command(document, file.defaults, pairs, folder)
            else:
                keys = _table_of_keys(document, file.defaults)
            table = convert(keys, CasesTable)
            choices = as_tuple(table.models)
            for case in cases_of(keys, table, pairs, on_gpu=on_gpu):
                listing.add(case, location, choices)

    listing.check_selectable()
    used_pairs = dict.fromkeys(case.server.models for case in listing.cases)
    return Tier(
        name=name,
        needs_gpus=file.needs_gpus,
        cases=tuple(_with_controls(listing, on_gpu=on_gpu)),
        locations=listing.locations,
        choices=listing.choices,
        licences={pair: pairs[pair].licence for pair in used_pairs if pairs[pair].licence},
        commands=commands,
    )


class _Listing:
    """Collects the cases of a tier, and checks that their ids differ.

    Attributes:
        cases: the cases so far.
        locations: the file and the number of each case's table, by case id.
        choices: the model pairs that each case's table names, by case id.
        _pairs_by_server: the model pair of each server, by the server's id.
        _folded_ids: the case ids, by the id in lower case.
    """

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.locations: dict[str, str] = {}
        self.choices: dict[str, tuple[str, ...]] = {}
        self._pairs_by_server: dict[str, str] = {}
        self._folded_ids: dict[str, str] = {}

    def add(self, case: Case, location: str, choices: tuple[str, ...]) -> None:
        """Add the next case.

        Raises:
            SpecregError: its id has other characters than a name may have, or too many.
            MatrixError: its id or the id of its server is taken, or there are too many cases.
        """
        check_spelling("case", case.id, MAX_CASE_CHARACTERS)
        if case.id in self.locations:
            raise MatrixError(
                f"two cases have the id '{case.id}', the other one in {self.locations[case.id]};"
                " remove one"
            )

        folded_id = self._folded_ids.setdefault(case.id.lower(), case.id)
        if folded_id != case.id:
            raise MatrixError(
                f"case '{case.id}' differs from '{folded_id}' only in capital letters, and -k takes"
                " both for the same; rename a model pair or a variant"
            )

        server = case.server
        pair = self._pairs_by_server.setdefault(server.id, server.models)

        # Names of pairs may have dashes, so two different pairs can give servers the same id.
        if pair != server.models:
            raise MatrixError(
                f"two servers have the id '{server.id}', one of model pair '{server.models}', the"
                f" other of '{pair}'; rename a pair"
            )

        if len(self.cases) >= _MAX_CASES:
            raise MatrixError(f"there are more than {_MAX_CASES} cases; leave some out")
        self.cases.append(case)
        self.locations[case.id] = location
        self.choices[case.id] = choices

    def check_selectable(self) -> None:
        """Check that `-k ID-` selects a single case, for each case.

        The workers of pytest-xdist also find the group of a test by `ID-` in its name.

        Raises:
            MatrixError: the id of a case is a part of the id of another one.
        """
        all_ids = "\n".join(f"{folded_id}-" for folded_id in self._folded_ids)
        for folded_id, case_id in self._folded_ids.items():
            if all_ids.count(f"{folded_id}-") == 1:
                continue
            for longer_folded_id, longer_id in self._folded_ids.items():
                if longer_id != case_id and f"{folded_id}-" in f"{longer_folded_id}-":
                    raise MatrixError(
                        f"{self.locations[longer_id]}: case '{longer_id}' has the id of case"
                        f" '{case_id}' in its own, so -k with that id selects both; rename a model"
                        " pair, a dataset or a variant"
                    )


def tier_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the tiers in a folder, sorted.

    A file isn't a tier if what is before its suffix can't be a name.
    """
    files = (path for path in folder.glob("*.toml") if path.is_file())
    return tuple(sorted(path.stem for path in files if is_name(path.stem)))


def _table_of_keys(document: object, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a table that has no command, with the tier's defaults.

    Raises:
        MatrixError: the document isn't a table, or the defaults have a command.
    """
    if not isinstance(document, dict):
        return convert(document, dict)
    if COMMAND in defaults:
        raise MatrixError("[defaults] has a command; give it to a table of cases")
    return {**defaults, **document}


def _table_of_command(
    document: Mapping[str, Any],
    defaults: Mapping[str, Any],
    pairs: dict[str, ModelsTable],
    folder: Path,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys of a table that has a command, and lines that explain the command.

    Its model pair is a pair with the same models, or else a new one, which is added to `pairs`.

    Args:
        document: the table.
        defaults: the tier's defaults.
        pairs: the model pairs by name.
        folder: the folder of the tier.

    Raises:
        MatrixError: the command can't be read, or contradicts a key or a model pair, or the name of
            a new pair ends like the name of a second launch.
        SpecregError: the name of a new pair has other characters than a name may have, or too many.
    """
    # Read the command.
    table = dict(document)
    command = table.pop(COMMAND)
    understood = understand_command(command, table, folder)
    keys = merge_command(understood, table, defaults)

    # Find the model pair.
    fitting_pairs = []
    for name, pair in pairs.items():
        has_drafts = understood.drafts.items() <= pair.drafts.items()
        if pair.target == understood.target and has_drafts:
            fitting_pairs.append(name)

    name = table.get("models", understood.pair_name)
    if not isinstance(name, str):
        raise MatrixError(f"models = {as_toml(name)} with a command, which has one pair; name one")

    # A pair of the repository is preferred, because it has the sizes of its models.
    if "models" not in table and fitting_pairs and name not in fitting_pairs:
        name = fitting_pairs[0]
    if name not in pairs:
        check_ending("model pair", name)
        pairs[name] = ModelsTable(target=understood.target, drafts=dict(understood.drafts))
    elif name not in fitting_pairs:
        raise MatrixError(
            f"models = '{name}' has other models than the command; give models another name"
        )

    keys["models"] = name
    return keys, describe(understood, name)


def _with_controls(listing: _Listing, *, on_gpu: bool) -> Iterator[Case]:
    """Yield the cases of a tier, and give a control to those that speculate.

    A case gets a control only if the tier also has a case whose server is that control.

    Args:
        listing: the cases of the tier.
        on_gpu: True if the servers run on GPUs. Then case and control share the memory.

    Raises:
        MatrixError: a server takes so much of a GPU's memory that its control doesn't fit.
    """
    plain_servers = {case.server for case in listing.cases if not case.speculates}
    for case in listing.cases:
        control = case.server.without_speculation
        if not case.speculates or control not in plain_servers:
            yield case
            continue
        share_frac = case.server.gpu_memory_frac
        if on_gpu and share_frac > _MAX_SHARED_FRAC:
            raise MatrixError(
                f"{listing.locations[case.id]}: gpu_memory_frac = {share_frac}, needed at most"
                f" {_MAX_SHARED_FRAC}: case and control share the GPU; lower it"
            )
        yield dataclasses.replace(case, control=control)
