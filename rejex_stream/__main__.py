"""``python -m rejex_stream`` is ``rejex-stream``: the program from its very first moment."""

import signal
import sys
from types import FrameType

__all__ = ["main"]


def main() -> int:
    """Run the command line; stopped while it is still being loaded, it ends without a word."""
    signal.signal(signal.SIGINT, _nothing_was_begun)
    if sys.argv[1:2] == ["run"]:
        signal.signal(signal.SIGTERM, _nothing_was_begun)
    from rejex_stream.cli import main as command_line

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return command_line()


def _nothing_was_begun(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number if number == signal.SIGINT else 0)


if __name__ == "__main__":
    sys.exit(main())
