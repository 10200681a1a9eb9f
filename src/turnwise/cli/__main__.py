"""`python -m turnwise.cli`, the same as the command `turnwise`."""

import sys

from turnwise.cli.main import main

sys.exit(main())
