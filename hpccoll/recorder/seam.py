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

from hpccoll import settings
from hpccoll.errors import ArgumentError
from hpccoll.recorder import limits, ring, sites
from hpccoll.recorder.ring import COLLECTIVE, ENDED, MESSAGE, current

__all__ = ["ACTIVE", "OPTIONS", "carry", "collective", "failed", "message", "recorded", "site", "take"]

ACTIVE = ring.RECORDING or bool(settings.CHECK.get_or_default())

Method = TypeVar("Method", bound=Callable[..., Any])

OPTIONS: dict[str, tuple[str, ...]] = {}
"""Method -> the options that are recorded. An entry holds the value of a single one, or a tuple."""

_RECORDED = ("op", "root", "counts", "dest", "source", "tag")

# A wrapper with the method's own signature costs a third of one with *args and **kwargs, and all of this together has
# to stay below a microsecond. So it is put together as text, like the methods of a dataclass.
_WRAPPER = """\
def {name}({parameters}):
{defer}
{look}
    frame = getframe(1)
    code = frame.f_code
    if code.co_filename.startswith(CALLERS):
        frame = outside(frame)
        code = frame.f_code
    log = self._log
    log.{counter} = number = log.{counter} + 1
    written = next(numbers)
    begun = now_ns()
    entry = [log, KIND, number, {name!r}, dtype, shape, {detail}, code, frame.f_lasti, get_ident(), begun, begun,
             0, False, {blocking}, None, None, written]
    slot = written % SIZE
    if not slots[slot][{ended}]:
        keep(slots[slot])
    slots[slot] = entry
    try:
{check}
        result = method({arguments})
    except BaseException as error:
        failed(entry, error)
        raise
{end}
    return result
"""
_DEFER = """\
    worker = self._worker
    if {not_now} worker is not None and not worker.idle and not worker.is_current:
        return defer(self, method, {name!r}, {buffer}, {detail}, getframe(1), {blocking}, {given})
"""
_LOOK = """\
    try:
        dtype = x.dtype
        shape = x.shape
    except AttributeError:
        dtype, shape = shape_of({buffer})
"""
_CHECK = """\
        if self._check is not None:
            self._check(entry, {given})
"""
_END = """\
    entry[{ended}] = now_ns()
"""
_CARRY = """\
    if blocking:
        entry[{ended}] = now_ns()
    else:
        result.carry(entry)
"""


def collective(method: Method) -> Method:
    """Record the calls of a collective of :class:`hpccoll.comm.issuing.Issuing`."""
    return _wrapped(method, COLLECTIVE, "started", _DEFER, _CHECK, _END) if ACTIVE else method


def message(method: Method) -> Method:
    """Record the calls of a method that sends or receives; its Work carries the entry on."""
    return _wrapped(method, MESSAGE, "messages", "", "", _CARRY) if ACTIVE else method


def _wrapped(method: Method, kind: str, counter: str, defer: str, check: str, end: str) -> Method:
    name, parameters = method.__name__, list(inspect.signature(method).parameters.values())
    names = [parameter.name for parameter in parameters]
    OPTIONS[name] = options = tuple(option for option in _RECORDED if option in names)
    positional = [p.name for p in parameters[1:] if p.kind is not p.KEYWORD_ONLY]
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    passed = ", ".join(f"{name}={name}" for name in by_name)
    blocking = "blocking" if "blocking" in names else "True"
    words = {
        "name": name,
        "parameters": _declared(parameters),
        "arguments": ", ".join(["self", *positional, *([passed] if passed else [])]),
        "given": f"({''.join(f'{name}, ' for name in positional)}), dict({passed})",
        "detail": options[0] if len(options) == 1 else f"({', '.join(options)})" if options else "None",
        "buffer": "None" if "x" not in names else "(out if x is None else x)" if "out" in names else "x",
        "blocking": blocking,
        "not_now": "not blocking or" if blocking == "blocking" else "",
        "counter": counter,
        "ended": ENDED,
    }
    parts = {
        "defer": defer,
        "look": _LOOK if "x" in names else "    dtype = shape = None\n",
        "check": check,
        "end": end,
    }
    text = _WRAPPER.format(**words, **{key: part.format(**words) for key, part in parts.items()})
    place = {
        "getframe": sys._getframe, "get_ident": threading.get_ident, "outside": sites.outside, "CALLERS": sites.CALLERS,
        "numbers": ring.numbers, "now_ns": ring.now_ns, "slots": ring.slots, "SIZE": ring.SIZE, "keep": ring.keep,
        "shape_of": ring.shape_of, "failed": failed, "defer": _defer, "KIND": kind, "method": method,
        **{f"_{p.name}": p.default for p in parameters},
    }  # fmt: skip
    exec(compile(text, f"{sites.GENERATED}{name}>", "exec"), place)
    return cast(Method, functools.wraps(method)(place[name]))


def _declared(parameters: list[inspect.Parameter]) -> str:
    words, star = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        given = "" if parameter.default is parameter.empty else f"=_{parameter.name}"
        words.append(parameter.name + given)
    return ", ".join(words)


def failed(entry: list[Any], error: BaseException) -> None:
    """Note that an operation has raised."""
    if isinstance(error, ArgumentError):
        ring.reject(entry)  # nothing has been sent
    elif not entry[ENDED]:
        ring.fail(entry)


# ---- What runs later, or on the communicator's own thread


def _defer(
    comm: Any, method: Any, name: str, x: Any, detail: Any, frame: Any, blocking: bool, args: Any, kwargs: Any
) -> Any:
    entry = ring.issue(comm._log, COLLECTIVE, name, x, detail, frame, blocking, limits.current())
    check = None if comm._check is None else functools.partial(comm._check, entry, args, kwargs)
    current.handed = (entry, check)
    try:
        result = method(comm, *args, **kwargs)
    except BaseException as error:
        failed(entry, error)
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


def recorded(
    log: ring.Log, method: str, operation: Callable[[], Any], blocking: bool = True
) -> Callable[[], Any]:
    """`operation`, issued now as a collective of a communicator, and carried out when it is called."""
    if not ACTIVE:
        return operation
    frame = sys._getframe(1)
    entry = ring.issue(log, COLLECTIVE, method, None, None, frame, blocking, limits.current())
    return carry(entry, None, operation)


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
            failed(entry, error)
            raise
        finally:
            current.entry = outer
        ring.finish(entry)
        return result

    return run


def site(entry: list[Any]) -> tuple[str, str]:
    """``file:line`` of the call in the user's program, and the function that it stands in."""
    return sites.describe(entry[ring.CODE], entry[ring.INSTRUCTION])
