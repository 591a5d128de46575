"""Judge measurements against what is known of their case; confirm and correct the verdicts.

History and the selftest of the error rates are here. No server is started or measured.
"""
