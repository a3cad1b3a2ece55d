"""Equilibria: methods as frozen records, one a file, run by one loop; how to differentiate them is not known here."""
