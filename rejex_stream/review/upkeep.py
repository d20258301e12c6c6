"""What happens in the store without anybody pressing a key: feeds in, labels out, time passing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rejex_stream.errors import RejexError
from rejex_stream.review.feeds import Feed
from rejex_stream.review.outbox import LabelSink
from rejex_stream.review.store import ReviewStore
from rejex_stream.review.watching import PipelineWatch

__all__ = ["Inflow", "Upkeep"]

_log = logging.getLogger(__name__)
_EXPIRE_EVERY_S = 30.0
_SAVE_EVERY_S = 30.0
_PUMP_S = 1.0
"""How long one feed may keep the others, and the labels, waiting."""


@dataclass(frozen=True, slots=True)
class Inflow:
    """One feed, and the monitors that watch its pipeline."""

    feed: Feed
    watch: PipelineWatch | None = None


class Upkeep:
    """A thread that keeps a store up to date until it is stopped.

    Parameters
    ----------
    inflows
        Pumped in turn; verdicts are shown to their monitors too.
    sink
        Where labels go; ``None`` keeps them in the store's outbox.
    pause_s
        Between two rounds that found nothing.
    """

    def __init__(
        self,
        store: ReviewStore,
        inflows: Sequence[Inflow] = (),
        sink: LabelSink | None = None,
        *,
        pause_s: float = 0.5,
    ) -> None:
        self._store = store
        self._inflows = tuple(inflows)
        for inflow in self._inflows:
            # Streams are found under the pipeline whose monitors watch them.
            if inflow.watch is not None and not inflow.feed.pipeline:
                inflow.feed.pipeline = inflow.watch.pipeline
        self._sink = sink
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="review-upkeep", daemon=True)
        self._next_expiry_s = self._next_save_s = 0.0
        self.problems: dict[str, str] = {}
        self.invalid: dict[str, tuple[int, str]] = {}

    def start(self) -> None:
        """Begin, in the background."""
        self._next_save_s = time.monotonic() + _SAVE_EVERY_S
        self._thread.start()

    def stop(self, patience_s: float = 1.0) -> bool:
        """Finish the round, keep the monitors' state, and let go of feeds and sink.

        Says whether that was possible in time: supervisors have little patience. A thread that
        waits for a broker that is away is left behind; every change is one transaction, and labels
        wait in the store.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)
            if self._thread.is_alive():
                return False
        for inflow in self._inflows:
            inflow.feed.close()
        if self._sink is not None:
            self._sink.close()
        return True

    def _watches(self) -> set[PipelineWatch]:
        return {inflow.watch for inflow in self._inflows if inflow.watch is not None}

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self.round():
                self._stop.wait(self._pause_s)
        self._try("monitors", self._save)  # before the labels, which may have to wait for a broker
        self._send()  # what was decided while the last round ran

    def round(self) -> bool:
        """Do everything once; says whether anything came in."""
        busy = False
        for number, inflow in enumerate(self._inflows):
            if self._stop.is_set():
                return busy
            busy |= self._try(f"feed {number}", partial(self._pump, inflow))
        if not self._stop.is_set():
            busy |= self._send()
        now_s = time.monotonic()
        if now_s >= self._next_expiry_s:
            self._next_expiry_s = now_s + _EXPIRE_EVERY_S
            self._try("expiry", lambda: bool(self._store.expire_due()))
        if now_s >= self._next_save_s:
            self._next_save_s = now_s + _SAVE_EVERY_S
            self._try("monitors", self._save)
        return busy

    def _send(self) -> bool:
        sink = self._sink
        return sink is not None and self._try("labels", lambda: bool(self._store.relay(sink)))

    def _pump(self, inflow: Inflow) -> bool:
        watch = inflow.watch
        tap = watch.observe_lines if watch is not None and inflow.feed.kind == "verdicts" else None
        until_s = time.monotonic() + _PUMP_S
        counts = inflow.feed.pump(
            self._store,
            tap=tap,
            stop=lambda: self._stop.is_set() or time.monotonic() > until_s,
        )
        if counts.invalid:
            name = inflow.feed.kind
            before, _ = self.invalid.get(name, (0, ""))
            self.invalid[name] = (before + counts.invalid, counts.first_invalid)
            _log.warning(
                "%d lines of the %s feed could not be read: %s",
                counts.invalid,
                name,
                counts.first_invalid,
            )
        return bool(counts.items or counts.verdicts)

    def _save(self) -> bool:
        for watch in self._watches():
            watch.save()
        self._store.forget_old_points()
        return False

    def _try(self, name: str, work: Callable[[], bool]) -> bool:
        """Run one part; a failure is shown on every page until the part works again."""
        try:
            result = work()
        except RejexError as error:
            if self.problems.get(name) != str(error):
                _log.error("%s", error)
            self.problems[name] = str(error)
            return False
        except Exception as error:
            # The queue must stay workable: the failure is shown, and tried again.
            _log.exception("the upkeep of the review store failed at: %s", name)
            self.problems[name] = f"{name}: {type(error).__name__}: {error}"
            return False
        self.problems.pop(name, None)
        return result
