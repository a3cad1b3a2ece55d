"""Tries to break what the rest claims: certificates, calls, pairs of inputs and files, all drawn from seeds."""
