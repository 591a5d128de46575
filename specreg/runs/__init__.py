"""What a run has measured, what it measures next, and measuring it.

The ledger is the only record of a run. What comes next is a pure function of it.
"""
