"""Count drafted and accepted tokens, and compute acceptance length and rate from the counts.

A record says where its counts come from. The checks refuse counts that contradict one another.
"""
