"""Share the level of a test among several looks at a measurement.

Five looks at the level of one would raise three times its alarms, so they share it: a little for
each early look, the rest for the last (Haybittle 1971, Peto 1976). The levels add up, so no more
than their sum is ever wrong, whatever the correlation between looks.
"""

from enum import Enum

LEVEL = 0.01
"""How often a proof may be wrong, one-sided, over all looks at a metric."""
PARTS = 5
"""How many looks there are at a run's own prompts; all but the last are early."""
MORE_LAUNCHES = 3
"""How many launches more an undecided speed may take."""


class Look(Enum):
    """A moment at which a metric may be decided, and its share of the level.

    Of prompts: early, after one to four fifths of them, for what is plain among the hundreds of
    figures of a night; after all of them; and after as many more. Of a speed: after the launches of
    the run, and after each of those that follow.
    """

    EARLY = 0.00001
    FULL = 0.0093
    EXTENDED = 0.00066
    LAUNCH = 0.004
    FURTHER_LAUNCH = 0.002
