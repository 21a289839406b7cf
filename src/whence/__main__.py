"""``python -m whence``: the command line, where the script ``whence`` is not on the path."""

import sys

from whence.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
