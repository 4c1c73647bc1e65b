"""``python -m gradcore`` is the command ``gradcore``."""

import sys

from gradcore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
