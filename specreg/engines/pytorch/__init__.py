"""The reference engine: speculative decoding with PyTorch, slow and exact.

It says what the acceptance of a target and a draft should be. `python -m specreg.engines.pytorch`
serves it; that process alone imports these modules, in an environment of its own.
"""
