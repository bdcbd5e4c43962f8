"""`python -m memagent` is the command `memagent`."""

import sys

from memagent.cli import main

sys.exit(main())
