"""`python -m crewlet` is the command `crewlet`."""

import sys

from crewlet.cli import main

sys.exit(main())
