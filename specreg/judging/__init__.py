"""Judge speeds over the nights of a machine: what a figure lost, and who lost it.

Everything here is a pure function of plain samples. It starts nothing, reads no file, and knows
neither pytest nor a report. `verdicts.NightJudge` is the whole of it.
"""
