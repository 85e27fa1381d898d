"""`python -m crewlet.cli`."""

import sys

from crewlet.cli import main

sys.exit(main())
