"""The reference engine: speculative decoding with PyTorch, slow and exact.

It shows what the acceptance of a target and a draft should be. `python -m specreg.engines.pytorch`
serves it, in an environment of its own. Other processes of specreg only import the modules that
need no PyTorch.
"""
