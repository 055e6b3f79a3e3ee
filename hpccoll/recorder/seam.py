"""What every call of a communicator's method goes through: the decorators that record it and let check mode look.

`collective` and `message` go on the public methods. Where the environment turns the recorder off (and no check mode on)
they return the method itself, so that it costs what it would without them.

The check hook is ``comm._check``: None, or called as ``_check(entry, args, kwargs)`` when a collective is about to
start, on the thread that carries it out and in the order of the communicator, before anything is sent. What it raises
is the operation's error. ``entry[ring.METHOD]`` is the method, `site` gives the place of the call.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from hpccoll.errors import ArgumentError
from hpccoll.recorder import limits, ring, settings, sites
from hpccoll.recorder.ring import COLLECTIVE, ENDED, MESSAGE, current, now_ns

__all__ = ["ACTIVE", "OPTIONS", "carry", "collective", "message", "site", "take"]

ACTIVE = ring.RECORDING or settings.checks()

Method = TypeVar("Method", bound=Callable[..., Any])

OPTIONS: dict[str, tuple[str, ...]] = {}
"""Method -> the options that are recorded. An entry holds the value of a single one, or a tuple."""

_RECORDED = ("op", "root", "dest", "source", "tag")


def collective(method: Method) -> Method:
    """Record the calls of a collective of :class:`hpccoll.comm.issuing.Issuing`."""
    if not ACTIVE:
        return method
    name, takes_buffer, detail_of, option, default = _of(method)
    put, outside, getframe, get_ident, of_us = (
        ring.put,
        sites.outside,
        sys._getframe,
        threading.get_ident,
        sites.HPCCOLL,
    )

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        worker = self._worker
        queued = worker is not None and not worker.idle and not worker.is_current
        detail = kwargs.get(option, default) if detail_of is None else detail_of(kwargs)
        if queued or not kwargs.get("blocking", True):
            x = _buffer(args, kwargs) if takes_buffer else None
            return _issue(self, method, name, x, detail, getframe(1), args, kwargs)
        dtype = shape = None
        if takes_buffer:
            try:
                x = args[0]
                dtype, shape = x.dtype, x.shape
            except (AttributeError, IndexError):
                dtype, shape = ring.shape_of(_buffer(args, kwargs))
            x = None
        frame = getframe(1)
        code = frame.f_code
        if code.co_filename.startswith(of_us):
            frame = outside(frame)
            code = frame.f_code
        log = self._log
        log.started = number = log.started + 1
        begun = now_ns()
        entry = [log, COLLECTIVE, number, name, dtype, shape, detail, code, frame.f_lasti, get_ident(), begun, begun,
                 0, False, True, None, 0]  # fmt: skip
        put(entry)
        try:
            if self._check is not None:
                self._check(entry, args, kwargs)
            result = method(self, *args, **kwargs)
        except BaseException as error:
            _failed(entry, error)
            raise
        entry[ENDED] = now_ns()
        log.completed = number
        return result

    return cast(Method, call)


def message(method: Method) -> Method:
    """Record the calls of a method that sends or receives; its Work carries the entry on."""
    if not ACTIVE:
        return method
    name, _, detail_of, option, default = _of(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        blocking = bool(kwargs.get("blocking", True))
        detail = kwargs.get(option, default) if detail_of is None else detail_of(kwargs)
        x = _buffer(args, kwargs)
        entry = ring.issue(self._log, MESSAGE, name, x, detail, sys._getframe(1), blocking, None)
        del x
        ring.start(entry)
        try:
            result = method(self, *args, **kwargs)
        except BaseException as error:
            _failed(entry, error)
            raise
        if blocking:
            entry[ENDED] = now_ns()
        else:
            result.carry(entry)
        return result

    return cast(Method, call)


def _of(method: Callable[..., Any]) -> tuple[str, bool, Callable[[dict[str, Any]], Any] | None, str, Any]:
    name, parameters = method.__name__, inspect.signature(method).parameters
    OPTIONS[name] = options = tuple(option for option in _RECORDED if option in parameters)
    defaults = [parameters[option].default for option in options]
    defaults = [None if value is inspect.Parameter.empty else value for value in defaults]
    if len(options) < 2:
        return name, "x" in parameters, None, *(options or ("",)), *(defaults or (None,))
    pairs = tuple(zip(options, defaults, strict=True))
    return name, "x" in parameters, lambda kwargs: tuple([kwargs.get(*pair) for pair in pairs]), "", None


def _buffer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0] if args else kwargs.get("x")
    return kwargs.get("out") if x is None else x


def _failed(entry: list[Any], error: BaseException) -> None:
    if isinstance(error, ArgumentError):
        ring.reject(entry)  # nothing has been sent
    elif not entry[ENDED]:
        ring.fail(entry)


# ---- What runs later, or on the communicator's own thread


def _issue(
    comm: Any,
    method: Any,
    name: str,
    x: Any,
    detail: Any,
    frame: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    blocking = bool(kwargs.get("blocking", True))
    entry = ring.issue(comm._log, COLLECTIVE, name, x, detail, frame, blocking, limits.current())
    check = None if comm._check is None else functools.partial(comm._check, entry, args, kwargs)
    current.handed = (entry, check)
    try:
        result = method(comm, *args, **kwargs)
    except BaseException as error:
        _failed(entry, error)
        raise
    finally:
        left, current.handed = current.handed, None
    if left is not None:  # done at once, by a short cut
        ring.start(entry)
        ring.finish(entry)
    return result


def take(operation: Callable[[], Any]) -> Callable[[], Any]:
    """Take up what the decorator on this thread has handed over: `operation`, recorded where it will run."""
    handed = getattr(current, "handed", None)
    if handed is None:
        return operation
    current.handed = None
    entry, check = handed
    return carry(entry, check, operation)


def carry(
    entry: list[Any], check: Callable[[], None] | None, operation: Callable[[], Any]
) -> Callable[[], Any]:
    """`operation`, with its start and end noted in `entry`."""

    def run() -> Any:
        outer, current.entry = getattr(current, "entry", None), entry
        ring.start(entry)
        try:
            if check is not None:
                check()
            result = operation()
        except BaseException as error:
            _failed(entry, error)
            raise
        finally:
            current.entry = outer
        ring.finish(entry)
        return result

    return run


def site(entry: list[Any]) -> tuple[str, str]:
    """``file:line`` of the call in the user's program, and the function that it stands in."""
    return sites.describe(entry[ring.CODE], entry[ring.INSTRUCTION])
