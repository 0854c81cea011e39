"""Rows of a benchmark in a process each: several are compiled at once, nothing meanwhile timed, and then one at a time
is timed. Compilers take most of a run whose contestants are compiled for each row."""

import contextlib
import functools
import multiprocessing

_turns = {}  # what a process was started with


def _start(**given):
    _turns.update(given)


@contextlib.contextmanager
def compiling():
    """Around what a row compiles; leaving it waits for the other rows."""
    try:
        with _turns["compiling"] if _turns else contextlib.nullcontext():
            yield
    finally:
        if _turns:
            _turns["all_ready"].wait(timeout=1800)  # a row whose process died ends the others, too


def timing():
    """Around what a row times."""
    return _turns["alone"] if _turns else contextlib.nullcontext()


def results(measured, names, workers):
    """What `measured`, a module's function, returns of each name, in order, as they come. It enters `compiling` once."""
    context = multiprocessing.get_context("spawn")
    turns = {
        "compiling": context.Semaphore(workers),
        "all_ready": context.Barrier(len(names)),
        "alone": context.Lock(),
    }
    with context.Pool(len(names), initializer=functools.partial(_start, **turns)) as pool:
        yield from pool.imap(measured, names, chunksize=1)
