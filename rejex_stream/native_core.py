"""Which core works: the native one beside Python's, where it is installed and has passed its trial.

Nothing of it is loaded before that. The trial (:mod:`rejex_stream.native_trial`) runs in a process
of its own, which a damaged file may kill, and is remembered by what it tried: the core's files, the
package's, the interpreter. Who takes :func:`native` as an argument can be told to go without.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rejex_stream.errors import EngineError
from rejex_stream.native_seam import reached

_TRIAL = "from rejex_stream.native_trial import main; main()"
_TRIAL_S = 600.0  # on a machine that has much else to do
_AGAIN = "build it again (`make native`)"


class Core(NamedTuple):
    """What judges natively: what makes the fast path of a stream, and what takes a whole poll."""

    fast_path: Any
    poll: Any
    beside: Any = None  # and what says what siblings read


@lru_cache(maxsize=1)
def core() -> tuple[Core | None, str]:
    """Return the native core, ``None`` without one, and a sentence on which core judges."""
    if os.environ.get("REJEX_CORE") == "python":
        return None, "Python judges all events: REJEX_CORE=python"
    if find_spec("rejex_native") is None:
        return None, "Python judges all events: no native core is installed (`make native`)"
    try:
        if not (reason := _known_against(digest := _digest()) or _tried(digest)):
            import rejex_native

            reason = reason_against(rejex_native)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        reason = f"cannot be loaded ({type(error).__name__}: {error}): {_AGAIN}"
    if reason:
        return None, f"Python judges all events: the native core {reason}"
    whole = Core(rejex_native.fast_path_of, rejex_native.poll, rejex_native.beside)
    return whole, "the native core judges ordinary events as Python would"


def native(name: str) -> Any:  # noqa: ANN401 - a class of its own
    """Return what the native core has by that name; ``None`` where Python works alone."""
    if core()[0] is None:
        return None
    import rejex_native

    return getattr(rejex_native, name)


def reason_against(loaded: Any) -> str:  # noqa: ANN401 - a module
    """Return why a core that could be loaded is not one of this package; empty: it is."""
    known = getattr(loaded, "REACHED", None)
    if known is None:
        return f"is of another tree: {_AGAIN}"
    if apart := sorted(reached() ^ set(known)):
        shown = ", ".join(apart[:3]) + ", ..." * (len(apart) > 3)
        return f"reaches other names than this package declares ({shown}): {_AGAIN}"
    return ""


def broke_off(item: Any, why: str) -> EngineError:  # noqa: ANN401 - a reading, a record, ...
    """Return the error of a core that panicked at an item; a start after this goes without it."""
    record = getattr(item, "record", item)
    stream, position = getattr(item, "stream_key", None), getattr(record, "position", None)
    where = f"at {position}" if stream is None else f"at {position} of stream {stream!r}"
    sentence = f"broke off {where}: {why}"
    way = "start again with REJEX_CORE=python"
    with contextlib.suppress(OSError):
        digest = _digest()
        _memory(digest, "passed").unlink(missing_ok=True)
        _remember(digest, "broke", sentence)
        way = "start again, and Python judges alone"
    return EngineError(f"The native core {sentence}. Nothing of this batch was committed: {way}.")


# ------------------------------------------------------------------------------------ the trial
def _known_against(digest: str) -> str:
    """Return what an earlier start found wrong with it while it judged; empty: nothing."""
    broke = _memory(digest, "broke")
    with contextlib.suppress(OSError):
        return f"{broke.read_text('utf-8')} (remove {broke} to try it again)"
    return ""


def _tried(digest: str) -> str:
    """Try the core in a process of its own, once; return what is wrong with it, empty: nothing."""
    with contextlib.suppress(OSError):
        if _memory(digest, "passed").is_file():
            return ""
    if not sys.executable:
        return "cannot be tried: it is not known which program is the interpreter"
    path = os.pathsep.join(part or str(Path.cwd()) for part in sys.path)
    environment = {**os.environ, "REJEX_CORE": "python", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _TRIAL], capture_output=True, text=True, check=False,
        env=environment, timeout=_TRIAL_S, errors="replace", stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode < 0:
        ended = signal.Signals(-done.returncode).name
        return f"ends the process that loads it ({ended}): {_AGAIN}"
    if done.returncode:
        return done.stdout.strip() or f"failed its trial ({_last(done.stderr)}): {_AGAIN}"
    with contextlib.suppress(OSError):  # then it is tried at each start
        _remember(digest, "passed", "")
    return ""


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


def _digest() -> str:
    """Return what tells a core, the package and the interpreter from all others. 2.5 MB, 20 ms."""
    import msgspec
    import numpy as np

    digest = hashlib.blake2b(digest_size=16)
    libc = getattr(os, "confstr_names", {}).get("CS_GNU_LIBC_VERSION")
    libc = libc and os.confstr(libc)
    for part in (sys.version, np.__version__, msgspec.__version__, libc, _processor()):
        digest.update(repr(part).encode())
    for path in _files(("rejex_native", "rejex_stream", "rejex_connectors")):
        digest.update(str(path.name).encode() + path.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """Return which instructions this machine has, as numpy picks its own by them."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return ""


def _files(packages: Iterable[str]) -> Iterator[Path]:
    for package in packages:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent
            yield from sorted(
                path for path in folder.rglob("*") if path.suffix in (".py", ".so", ".pyd")
            )


def _memory(digest: str, what: str) -> Path:
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # of nobody's home
        folder = Path(os.devnull)
    return folder / "rejex-stream" / f"native-core-{digest}.{what}"


def _remember(digest: str, what: str, sentence: str) -> None:
    path = _memory(digest, what)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(sentence, "utf-8")
