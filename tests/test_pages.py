"""What the pages show runs as it stands: python blocks in order, page by page, and the commands between them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.problems import ROOT

FENCE = re.compile(r"^( *)```(python|sh)\n(.*?)^ *```$", re.M | re.S)
