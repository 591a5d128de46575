"""Many servers at once: what a run has to measure, spread over GPUs of this machine or of others.

A worker, a process of its own, measures one server's cases on GPUs that nobody else has meanwhile,
and leaves a journal; the run takes what it measured from there, as it does when it is gone on with.
"""
