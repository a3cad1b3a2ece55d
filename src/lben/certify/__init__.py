"""Proofs about explicit weights, and searches for what would contradict them; networks are known by weights alone."""
