"""Explicit weights as plain frozen records, one a kind: what solvers and certificates take; nothing is trained."""
