"""Imports that take less time, in this process and in those that it starts: a run of the tests has a hundred."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Where no bytecode may be written beside the sources, each process would compile all that it imports.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    cache = Path(__file__).parents[1] / ".pytest_cache"
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")

# It builds 38 parsers when jsonschema imports it, as all notebooks do; that needs it for two formats, and does without.
sys.modules.setdefault("rfc3987_syntax", None)
