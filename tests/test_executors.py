"""Where fits run: results once, errors carried, dead workers survived."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from rejex_stream.config import Config
from rejex_stream.config.assembly.running import make_executor
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.run.executors import (
    InlineExecutor,
    ProcessFitExecutor,
    ScopedExecutor,
    ThreadFitExecutor,
)
from tests.doubles import DelayedExecutor
from tests.program import ended
from tests.waiting import PATIENCE_S, until


def double(number):
    return 2 * number


def fail(kind, *arguments):
    raise kind(*arguments)


class AwkwardError(Exception):
    """Pickles, but cannot be unpickled: that breaks an unprepared pool."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def unpicklable():
    return threading.Lock()


def die_once(marker):
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    sys.exit(3)


def held(folder):
    (folder / "begun").touch()
    until((folder / "go on").exists)
    return "slow"


def blas_threads_and_niceness():
    import numpy as np
    from threadpoolctl import threadpool_info

    np.ones((2, 2)) @ np.ones((2, 2))
    return [pool["num_threads"] for pool in threadpool_info()], os.nice(0)


@pytest.fixture(scope="module")
def processes():
    executor = ProcessFitExecutor(workers=2)
    yield executor
    executor.close()


@pytest.fixture(params=["inline", "threads", "processes", "delayed"])
def executor(request):
    if request.param == "processes":
        yield request.getfixturevalue("processes")
        return
    made = {
        "inline": InlineExecutor,
        "threads": ThreadFitExecutor,
        "delayed": lambda: DelayedExecutor(seed=1),
    }[request.param]()
    yield made
    made.close()


def wait_until_done(executor, key):
    until(lambda: executor.done(key), "the fit is done")


# ------------------------------------------------------------------------- every executor alike


def test_a_result_is_what_the_fit_returned_and_is_given_once(executor):
    executor.submit("a", partial(double, 1))
    wait_until_done(executor, "a")
    assert executor.done("a"), "it is still there"
    assert executor.result("a") == 2
    assert not executor.done("a")
    with pytest.raises(DetectorError, match="'a'"):
        executor.result("a")


def test_an_unknown_key_is_refused(executor):
    assert not executor.done("nobody")
    with pytest.raises(DetectorError, match="taken once, after it was submitted"):
        executor.result("nobody")
    executor.cancel("nobody")


@pytest.mark.parametrize("waited", [False, True])
def test_a_failed_fit_is_done_and_what_it_raised_is_raised(executor, waited):
    executor.submit("a", partial(fail, ZeroDivisionError, "by nothing"))
    if waited:
        wait_until_done(executor, "a")
    with pytest.raises(ZeroDivisionError, match="by nothing"):
        executor.result("a")


def test_a_cancelled_key_is_forgotten_and_can_be_used_again(executor):
    executor.submit("a", partial(double, 1))
    executor.cancel("a")
    assert not executor.done("a")
    executor.submit("a", partial(double, 5))
    assert executor.result("a") == 10


def test_submitting_a_key_again_forgets_its_earlier_fit(executor):
    executor.submit("a", partial(double, 1))
    executor.submit("a", partial(double, 2))
    assert executor.result("a") == 4


def test_many_fits_keep_their_keys(executor):
    for number in range(20):
        executor.submit(number, partial(double, number))
    assert [executor.result(number) for number in reversed(range(20))] == [
        2 * number for number in reversed(range(20))
    ]


def note(path, name):
    with path.open("a") as notes:
        notes.write(name)
    return name


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [ThreadFitExecutor, ProcessFitExecutor])
def test_fits_that_are_asked_for_go_first_the_others_in_their_order(kind, tmp_path):
    notes = tmp_path / "notes"
    with closing(kind()) as executor:
        executor.submit("first", partial(held, tmp_path))
        until((tmp_path / "begun").exists)
        for name in "abcde":
            executor.submit(name, partial(note, notes, name))
        assert not executor.done("d")
        assert not executor.done("c")
        assert not executor.done("d")
        executor.cancel("b")
        (tmp_path / "go on").touch()
        assert executor.result("e") == "e"
        wait_until_done(executor, "a")
    assert notes.read_text() == "dcea"


@pytest.mark.parametrize("kind", [ThreadFitExecutor, ProcessFitExecutor])
def test_an_impossible_number_of_workers_is_refused(kind):
    with pytest.raises(ConfigError, match="workers is 0"):
        kind(0)
    with pytest.raises(ConfigError, match="niceness"):
        ProcessFitExecutor(niceness=20)


# ------------------------------------------------------------------------------------- threads
def test_threads_do_not_hold_up_the_end_of_the_program():
    program = """
        import threading
        from rejex_stream.run.executors import ThreadFitExecutor
        begun = threading.Event()
        executor = ThreadFitExecutor()
        executor.submit("a", lambda: (begun.set(), threading.Event().wait()))
        begun.wait()
    """
    program = textwrap.dedent(program)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


# ----------------------------------------------------------------------------------- processes
@pytest.mark.thorough
def test_an_error_that_cannot_be_unpickled_arrives_as_a_detector_error(processes):
    processes.submit("a", partial(fail, AwkwardError, 1, 2))
    with pytest.raises(DetectorError, match="AwkwardError: 1 and 2"):
        processes.result("a")
    processes.submit("b", partial(double, 1))
    assert processes.result("b") == 2


def test_an_error_tells_where_in_the_worker_it_was_raised(processes):
    processes.submit("a", partial(fail, ValueError, "here"))
    with pytest.raises(ValueError, match="here") as caught:
        processes.result("a")
    assert "in fail" in "".join(caught.value.__notes__)


def test_a_fit_that_exits_does_not_end_the_program(processes):
    processes.submit("a", leave)
    with pytest.raises(DetectorError, match="SystemExit: 3"):
        processes.result("a")


@pytest.mark.parametrize("fit", [lambda: 1, unpicklable], ids=["fit", "result"])
def test_what_cannot_be_pickled_is_refused_with_a_way_out(processes, fit):
    processes.submit("a", fit)
    with pytest.raises(DetectorError, match="top level of a module"):
        processes.result("a")


def test_workers_use_one_blas_thread_and_a_lower_priority(processes):
    processes.submit("a", blas_threads_and_niceness)
    threads, niceness = processes.result("a")
    assert threads
    assert set(threads) == {1}
    assert niceness >= min(19, os.nice(0) + 5)


@pytest.mark.thorough
def test_a_worker_that_dies_costs_its_neighbours_nothing(tmp_path):
    with closing(ProcessFitExecutor(workers=2)) as executor:
        executor.submit("neighbour", partial(held, tmp_path))
        until((tmp_path / "begun").exists)
        executor.submit("killer", die)
        executor.submit("unlucky", partial(die_once, tmp_path / "marker"))
        with pytest.raises(DetectorError, match="died 3 times"):
            executor.result("killer")
        wait_until_done(executor, "unlucky")
        assert executor.result("unlucky") == "survived"
        (tmp_path / "go on").touch()
        assert executor.result("neighbour") == "slow"
        executor.submit("next", partial(double, 3))
        assert executor.result("next") == 6


@pytest.mark.thorough
def test_an_interrupt_of_the_terminal_reaches_no_fit_and_closing_ends_those_that_run(tmp_path):
    executor = ProcessFitExecutor(workers=1)
    executor.submit("pid", os.getpid)
    # Taken hold of while it lives: `close` may be done with it before it returns.
    worker = psutil.Process(executor.result("pid"))
    for name in "ab":
        (tmp_path / name).mkdir()
        executor.submit(name, partial(held, tmp_path / name))
    until((tmp_path / "a" / "begun").exists)
    worker.send_signal(signal.SIGINT)
    (tmp_path / "a" / "go on").touch()
    assert executor.result("a") == "slow"
    until((tmp_path / "b" / "begun").exists)
    executor.close()
    worker.wait(timeout=PATIENCE_S / 2)  # the fit itself gives up later


def test_closing_ends_a_worker_that_is_being_started(tmp_path):
    """Interrupted during its first fits, a run waited for them, and a second interrupt ended it
    with a traceback."""
    before = set(psutil.Process().children())
    executor = ProcessFitExecutor(workers=2)
    for name in "ab":
        executor.submit(name, partial(held, tmp_path))
    until(lambda: executor._pools)
    executor.close()

    def is_fitting(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):  # one that has ended, if nobody asked for its status
            return "spawn_main" in " ".join(process.cmdline())
        return False

    def started() -> set[psutil.Process]:
        return set(psutil.Process().children()) - before

    until(
        lambda: not any(map(is_fitting, started())), timeout_s=PATIENCE_S / 2
    )  # the fit itself gives up later


def note_pid(file):
    file.write_text(str(os.getpid()))


def is_loaded(module):
    return module in sys.modules


@pytest.mark.thorough
def test_a_process_is_prepared_before_anybody_asks_for_a_fit(tmp_path):
    with closing(ProcessFitExecutor(prepare=partial(note_pid, tmp_path / "pid"))) as executor:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        executor.submit("a", os.getpid)
        assert executor.result("a") == int((tmp_path / "pid").read_text())


@pytest.mark.thorough
def test_what_preparing_raises_keeps_no_fit_from_running():
    with closing(ProcessFitExecutor(prepare=partial(sys.exit, "nothing"))) as executor:
        executor.submit("a", partial(double, 21))
        assert executor.result("a") == 42


@pytest.mark.thorough
def test_the_processes_of_a_pipeline_load_its_detector_as_they_begin():
    config = Config(
        pipeline={"name": "p"}, input={"kind": "file", "path": "x.csv", "channels": ["a"],
        "fixed_sensor": "s"}, detector={"name": "HBOS"}, rejection={"contamination": 0.02,
        "window": 100, "tolerance": 2}, refit={"executor": "process"},
    )  # fmt: skip
    with closing(make_executor(config)) as executor:
        executor.submit("a", partial(is_loaded, "pyod.models.hbos"))
        assert executor.result("a")


@pytest.mark.thorough
def test_workers_end_when_their_program_is_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys, time
            from rejex_stream.run.executors import ProcessFitExecutor

            if __name__ == "__main__":
                executor = ProcessFitExecutor()
                executor.submit("pid", os.getpid)
                print(executor.result("pid"), flush=True)
                time.sleep(600)
            """
        )
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, env=env
    ) as running:
        worker = psutil.Process(int(running.stdout.readline()))
        running.kill()
    worker.wait(timeout=PATIENCE_S)


@pytest.mark.thorough
def test_a_worker_that_is_ended_while_cancelled_fits_wait_leaves_no_trace(tmp_path):
    """As at a SIGTERM to the whole group: the engines give up their fits, the workers die."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys
            from functools import partial
            from pathlib import Path
            import psutil
            from rejex_stream.run.executors import ProcessFitExecutor
            from tests.test_executors import double, held
            from tests.waiting import until

            if __name__ == "__main__":
                folder = Path(sys.argv[1])
                executor = ProcessFitExecutor()
                executor.submit("pid", os.getpid)
                worker = psutil.Process(executor.result("pid"))
                executor.submit("runs", partial(held, folder))
                for number in range(20):
                    executor.submit(number, partial(double, number))
                until((folder / "begun").exists)
                for number in range(20):
                    executor.cancel(number)
                worker.kill()
                worker.wait()
                (folder / "go on").touch()
                executor.submit("next", partial(double, 21))
                print(executor.result("next"))
                executor.close()
            """
        )
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = ended([sys.executable, program, tmp_path], env=env, timeout=PATIENCE_S)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert done.stdout == "42\n"


# -------------------------------------------------------------------------------------- scopes
def test_a_scope_cancels_only_its_own():
    shared = DelayedExecutor(seed=0, delays=[1_000_000, 0, 0])
    left, right = ScopedExecutor(shared, "left"), ScopedExecutor(shared, "right")
    left.submit("a", partial(double, 1))
    right.submit("a", partial(double, 2))
    left.submit("b", partial(double, 3))
    assert left.result("a") == 2
    left.cancel_all()
    assert not left.done("b")
    assert right.done("a")
    assert right.result("a") == 4
