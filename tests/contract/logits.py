"""Prints how far the logits of two models lie apart, and the largest: `logits.py ONE OTHER IDS`.

Runs in an engine's environment, which has torch and transformers.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

one, other = (
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in sys.argv[1:3]
)
ids = torch.tensor([json.loads(sys.argv[3])])
with torch.inference_mode():
    logits = one(input_ids=ids).logits
    apart = (other(input_ids=ids).logits - logits).abs().max()
print(json.dumps([float(apart), float(logits.abs().max())]))  # noqa: T201 - a program's answer
