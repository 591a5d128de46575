"""A tier that is cut into shards."""

from tests.plugin.conftest import WITHOUT_TOLERANCES

TIER = WITHOUT_TOLERANCES.replace('"eagle3"]', '"eagle3", "ngram"]')
CASES = {f"vllm-{method}-tiny-toy-c{load}" for method in ("eagle3", "ngram") for load in (1, 4)}
CHOSEN = ("tests/perf", "-q", "-k", "acceptance or lossless")
