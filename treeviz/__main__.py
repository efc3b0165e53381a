"""`python -m treeviz` is the command `treeviz`."""

import sys

from treeviz.cli import main

sys.exit(main())
