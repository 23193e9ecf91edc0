"""`python -m wiggle_core.cli`, the same as `wiggle`."""

from __future__ import annotations

import sys

from wiggle_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
