"""`python -m ramify` is the command line."""

import sys

from ramify.cli import main

sys.exit(main())
