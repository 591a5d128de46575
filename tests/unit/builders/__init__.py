"""Objects with plausible contents, a module for each domain.

A test replaces the fields that it is about.
"""

from tests.unit.builders.acceptance import (
    PROMPTS_MEASURED,
    acceptance,
    acceptance_of,
    counts,
    prompt_acceptance,
    stored,
)
from tests.unit.builders.baselines import (
    ENVIRONMENT,
    OTHER_ENVIRONMENT,
    PROVENANCE,
    SETTINGS,
    baseline,
    known,
    published,
    record,
    record_on_gpu,
)
from tests.unit.builders.cases import (
    CASE,
    PLAIN_CASE,
    PLAIN_SPEC,
    PROMPTS,
    RECORDINGS,
    ROOT,
    SITE,
    SPEC,
    on_server,
    start_of,
    with_concurrency,
    with_judging,
    with_request,
)
from tests.unit.builders.datasets import rows_in, write_lines
from tests.unit.builders.devices import device, gpus, power
from tests.unit.builders.measurements import invalid, measure_alone, measurement
from tests.unit.builders.servers import counts_of, scripted, seem_installed, server, truth
from tests.unit.builders.traces import chunk, replayed, trace

__all__ = [
    "CASE",
    "ENVIRONMENT",
    "OTHER_ENVIRONMENT",
    "PLAIN_CASE",
    "PLAIN_SPEC",
    "PROMPTS",
    "PROMPTS_MEASURED",
    "PROVENANCE",
    "RECORDINGS",
    "ROOT",
    "SETTINGS",
    "SITE",
    "SPEC",
    "acceptance",
    "acceptance_of",
    "baseline",
    "chunk",
    "counts",
    "counts_of",
    "device",
    "gpus",
    "invalid",
    "known",
    "measure_alone",
    "measurement",
    "on_server",
    "power",
    "prompt_acceptance",
    "published",
    "record",
    "record_on_gpu",
    "replayed",
    "rows_in",
    "scripted",
    "seem_installed",
    "server",
    "start_of",
    "stored",
    "trace",
    "truth",
    "with_concurrency",
    "with_judging",
    "with_request",
    "write_lines",
]
