"""Share the level of a test among several looks at a measurement.

Every look may err. Five looks at the level of one would raise three times its alarms, so they
share it: a little for each early look, the rest for the last (Haybittle 1971, Peto 1976). The
levels add up, so no more than their sum is ever wrong, however the looks hang together.
"""

from enum import Enum

LEVEL = 0.01
"""How often a proof may be wrong, one-sided, over all looks at a metric."""

PARTS = 5
"""How many looks there are at a run's own prompts; all but the last are early."""
MORE_LAUNCHES = 3
"""How many launches more an undecided speed may take."""


class Look(Enum):
    """A moment at which a metric may be decided, and its share of the level."""

    EARLY = 0.00001
    """After a fifth of the prompts, two, three or four: for what is plain.

    What stops a case early must also stand among the hundreds of figures of a night.
    """
    FULL = 0.0093
    """After all prompts of the case."""
    EXTENDED = 0.00066
    """With as many prompts more."""

    LAUNCH = 0.004
    """A speed after the launches of the run."""
    FURTHER_LAUNCH = 0.002
    """A speed after one launch more, two or three."""
