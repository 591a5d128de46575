"""The counters of `/metrics`: steps in, a Prometheus page out."""

from specreg.engines.pytorch.jobs import Step

PREFIX = "reference:"


class Counters:
    """Counts since the start. `draft_tokens`: the most drafted per step, 0 without speculation."""

    def __init__(self, draft_tokens: int) -> None:
        self._speculates = draft_tokens > 0
        self._generation_tokens = 0
        self._drafts = self._draft_tokens = self._accepted_tokens = 0
        self._by_position = [0] * draft_tokens

    def count(self, step: Step) -> None:
        """Adds a step; those in which nothing was drafted aren't among the drafts."""
        self._generation_tokens += len(step.token_ids)
        self._drafts += step.drafted > 0
        self._draft_tokens += step.drafted
        self._accepted_tokens += step.accepted
        for position in range(step.accepted):
            self._by_position[position] += 1

    def page(self) -> str:
        """The page; like vLLM's, it has no speculation counters without speculation."""
        lines = _family("generation_tokens", {"": self._generation_tokens})
        if self._speculates:
            positions = {
                f'{{position="{position}"}}': count
                for position, count in enumerate(self._by_position)
            }
            lines += _family("spec_decode_num_drafts", {"": self._drafts})
            lines += _family("spec_decode_num_draft_tokens", {"": self._draft_tokens})
            lines += _family("spec_decode_num_accepted_tokens", {"": self._accepted_tokens})
            lines += _family("spec_decode_num_accepted_tokens_per_pos", positions)
        return "\n".join(lines) + "\n"


def _family(name: str, samples: dict[str, int]) -> list[str]:
    values = [f"{PREFIX}{name}_total{labels} {count}" for labels, count in samples.items()]
    return [f"# TYPE {PREFIX}{name} counter", *values]
