"""Layers of deep networks, and stacks of them with one bound for the whole; one equilibrium alone is in `networks`."""
