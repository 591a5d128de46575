"""What a metric is called and counted in: its name, which ends in its unit, in words."""

from specreg.report.terminal import NOTHING, format_number

_UNITS = {
    "_tokens_per_s": "tokens/s",
    "_requests_per_s": "requests/s",
    "_j_per_token": "J/token",
    "_tokens": "tokens",
    "_ratio": "times",
    "_frac": "",
    "_ms": "ms",
    "_w": "W",
}
"""The longer ones first: what ends in `_tokens_per_s` doesn't end in another."""


def label_of(metric: str) -> str:
    """`acceptance length` of `acceptance_length_tokens`."""
    return metric.removesuffix(_suffix(metric)).replace("_", " ")


def axis_of(metric: str) -> str:
    """`throughput, tokens/s` of `throughput_tokens_per_s`; shares have no unit."""
    return ", ".join(filter(None, (label_of(metric), _UNITS.get(_suffix(metric), ""))))


def render_value(metric: str, value: float | None) -> str:
    """`90 tokens/s`, `54.3%`, or a dash for what is unknown."""
    if value is None:
        return NOTHING
    if _suffix(metric) == "_frac":
        return f"{100 * value:.4g}%"
    return " ".join(filter(None, (format_number(value), _UNITS.get(_suffix(metric), ""))))


def _suffix(metric: str) -> str:
    return next((suffix for suffix in _UNITS if metric.endswith(suffix)), "")
