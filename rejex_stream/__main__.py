"""``python -m rejex_stream`` is ``rejex-stream``: the program from its very first moment."""

import signal
import sys
from types import FrameType

__all__ = ["main"]


def main() -> int:
    """Run the command line; a ``run`` that is stopped while it is still being loaded is done."""
    if sys.argv[1:2] == ["run"]:
        signal.signal(signal.SIGTERM, _nothing_was_begun)
    from rejex_stream.cli import main as command_line

    return command_line()


def _nothing_was_begun(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
