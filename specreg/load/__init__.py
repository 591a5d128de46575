"""The client: prompts and a load in, a round of traces out; it starts and judges nothing."""
