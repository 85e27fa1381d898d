"""The programs of the docs desk as modules: they find each other by folder, as scripts do."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "src" / "crewlet" / "examples" / "docs_desk"

if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))
