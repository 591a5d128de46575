"""Count what was drafted and accepted, and work acceptance length and rate out of the counts.

A record says where its counts were read. Checks refuse counts that contradict one another.
"""
