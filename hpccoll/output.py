"""Standard output that cannot be written: a program ends with one line, or quietly where nobody reads any more."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from hpccoll.environment import detect

__all__ = ["checked", "run_alone"]

# EX_IOERR of sysexits.h, and 128 + SIGPIPE: what a shell shows for a program that a closed pipe has ended.
CANNOT_WRITE, NOBODY_READS = 74, 141


class _Noting(io.TextIOWrapper):
    """Standard output that remembers which exception it has raised, as an OSError does not say of what file it is."""

    failure: OSError | None = None

    def write(self, text: str, /) -> int:
        with self._noting():
            return super().write(text)

    def flush(self) -> None:
        with self._noting():
            super().flush()

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            raise


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """Run a program in this context, at whose end what it has printed is written.

    Standard output stays replaced by an object that behaves as the one before.

    Raises
    ------
    SystemExit
        Standard output could not be written, and the program has not dealt with it: with status 74 after a line on
        standard error, or 141 where the reader has closed the pipe. The exceptions of the program pass.
    """
    stdout = _replaced()
    try:
        try:
            yield
        except SystemExit as request:
            # rich ends a program so whose reader has closed the pipe
            if stdout is not None and stdout.failure is not None and request.__context__ is stdout.failure:
                raise stdout.failure from None
            if sys.stdout is not None:
                sys.stdout.flush()
            raise
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if stdout is None or error is not stdout.failure:
            raise
        _end(error)


def run_alone(main: Callable[[], int]) -> NoReturn:
    """Run a program that needs no MPI and end the process with the status that it returns."""
    with checked():
        status = main()
    raise SystemExit(status)


def _replaced() -> _Noting | None:
    given: Any = sys.stdout
    if type(given) is not io.TextIOWrapper or given is not sys.__stdout__:
        return given if isinstance(given, _Noting) else None  # somebody else's, or none
    sys.stdout = noting = _Noting(
        given.buffer,
        given.encoding,
        given.errors,
        line_buffering=given.line_buffering,
        write_through=given.write_through,
    )
    return noting


def _end(error: OSError) -> NoReturn:
    # What is in the buffer still would raise again when Python ends.
    with open(os.devnull, "wb") as nowhere, contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        raise SystemExit(NOBODY_READS) from None
    launch = detect()
    where = f"rank {launch.rank}: " if launch is not None and launch.size != 1 else ""
    reason = error.strerror or error
    print(f"error: {where}standard output cannot be written: {reason}", file=sys.stderr, flush=True)
    raise SystemExit(CANNOT_WRITE) from None
