"""Proofs about explicit weights, and the search for what would contradict them. The verbs are `lben`'s own names."""
