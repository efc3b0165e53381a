"""`python -m treeviz` is the command `treeviz`."""

import os
import sys

if sys.path and sys.path[0] == os.getcwd():  # put there by `-m`; a stranger's folder may have a gguf.py
    del sys.path[0]

from treeviz.cli import main

sys.exit(main())
