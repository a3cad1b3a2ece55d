"""Settings of all tests."""

import torch

torch.set_warn_always(True)  # torch gives many warnings only once a process, which would hide them from later tests
