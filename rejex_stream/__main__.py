"""``python -m rejex_stream`` is ``rejex-stream``."""

import sys

from rejex_stream.cli import main

if __name__ == "__main__":
    sys.exit(main())
