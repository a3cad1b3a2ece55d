"""Settings of all tests."""

import torch
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)  # the same examples on every run: the seed is fixed
settings.load_profile("repeatable")

torch.set_warn_always(True)  # torch gives many warnings only once a process, which would hide them from later tests
