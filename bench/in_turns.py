"""Rows of a benchmark in a process each: several are compiled at once, nothing meanwhile timed, and then one at a time
is timed. Compilers take most of a run whose contestants are compiled for each row."""

import concurrent.futures
import contextlib
import functools
import multiprocessing

_turns = {}  # what a process was started with


def _start(**given):
    _turns.update(given)


@contextlib.contextmanager
def compiling():
    """Around what a row compiles; leaving it waits for the other rows."""
    if not _turns:
        yield
        return
    try:
        with _turns["compiling"]:
            yield
    finally:
        _arrive()


def _arrive():
    """Waits for the other rows, once."""
    if not _turns.pop("waits", False):
        return
    _turns["all_ready"].wait(timeout=1800)


def timing():
    """Around what a row times."""
    return _turns["alone"] if _turns else contextlib.nullcontext()


def _one(measured, failed, name):
    try:
        return measured(name)
    except Exception as error:
        return failed(name, error)
    finally:
        _arrive()  # a row that failed before it compiled anything


def results(measured, failed, names, workers):
    """What `measured`, a module's function, returns of each name, in order, as they come, or `failed` of a name and what
    went wrong. `measured` enters `compiling` once. A process that dies ends the run with BrokenProcessPool."""
    context = multiprocessing.get_context("spawn")
    turns = {
        "compiling": context.Semaphore(workers),
        "all_ready": context.Barrier(len(names)),
        "alone": context.Lock(),
        "waits": True,
    }
    start = functools.partial(_start, **turns)
    with concurrent.futures.ProcessPoolExecutor(len(names), context, initializer=start) as pool:
        yield from pool.map(functools.partial(_one, measured, failed), names)
