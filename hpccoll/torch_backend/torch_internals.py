"""All that hpccoll knows of torch.distributed's private names.

torch has no public way to serve the name ``"mpi"``: its group factory looks for a compiled-in MPI before it looks at
the registered backends. So the factory and three functions around it are wrapped here, and everything else in this
package uses only what this module gives. What a version of torch has is found out by looking (`hasattr`, signatures),
never by its version number.

The wrapped functions do their old work for every other backend. For ours they hand the request on under the own name,
which is an ordinary registered backend, and put back the name that the user gave.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

OWN = "hpccoll"
"""The name that needs nothing of this module: a registered backend like any other."""

MPI = "mpi"

_HELPER = "_new_process_group_helper"
_WITH_TAG = "_new_group_with_tag"

_RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")

_APART = 1_000_000  # more groups than anybody makes

_state: dict[str, Any] = {"serves_mpi": False, "originals": {}, "apart": {}}


# ---- What this torch is


def has_native_mpi() -> bool:
    """Whether this torch was built with its own MPI backend."""
    return hasattr(torch._C, "_c10d_init") and hasattr(torch._C._distributed_c10d, "ProcessGroupMPI")


def serves_mpi() -> bool:
    """Whether the name ``"mpi"`` is hpccoll's in this process."""
    return bool(_state["serves_mpi"])


def default_timeout() -> timedelta:
    """The limit of an operation where the user gives none."""
    return getattr(c10d, "default_pg_timeout", timedelta(minutes=30))


# ---- Registration


def register_own_name(factory: Callable[..., Any]) -> None:
    """Make ``"hpccoll"`` a backend; ``factory(opts, pg_options)`` makes its groups."""
    if OWN.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(OWN, factory, extended_api=True, devices=["cpu", "cuda"])


def register_scheme(scheme: str, handler: Callable[..., Any]) -> None:
    """Make ``init_method="scheme://"`` known."""
    # The attribute of this name is the function, which hides the module.
    rendezvous = import_module("torch.distributed.rendezvous")
    if scheme not in getattr(rendezvous, "_rendezvous_handlers", {}):
        dist.register_rendezvous_handler(scheme, handler)


def serve_mpi(
    make_world: Callable[[timedelta], tuple[Any, int, int]], after_init: Callable[[], None]
) -> None:
    """Give hpccoll the name ``"mpi"``.

    Parameters
    ----------
    make_world
        Called by ``init_process_group("mpi")`` with the timeout; returns a store and this process's rank and size.
    after_init
        Called after ``init_process_group`` has made one of our groups.
    """
    _state.update(make_world=make_world, after_init=after_init)
    if _state["serves_mpi"]:
        return
    c10d._MPI_AVAILABLE = True
    if not has_native_mpi():
        # Its presence is what is_mpi_available() and PyTorch's own tests ask for; groups are made by the wrapper.
        c10d.ProcessGroupMPI = _NotBuiltIn
    _wrap(_HELPER, _make_group)
    _wrap(_WITH_TAG, _make_subgroup)
    _wrap("init_process_group", _init)
    _wrap("split_group", _split)
    _wrap("monitored_barrier", _monitored_barrier)
    _state["serves_mpi"] = True


class _NotBuiltIn:
    """Stands where a torch with MPI has its C++ class."""

    @staticmethod
    def create(ranks: Sequence[int]) -> Any:
        raise RuntimeError(
            f"this torch ({torch.__version__}) makes its process groups in a way that hpccoll does not know: use "
            f'init_process_group("{OWN}", init_method="mpi://")'
        )


def _wrap(name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(c10d, name, None)
    if original is None:
        return  # a torch without this feature
    signature = inspect.signature(original)
    _state["originals"][name] = original

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, signature, args, kwargs)

    setattr(c10d, name, wrapper)
    for module in (dist, getattr(dist, "device_mesh", None)):
        if getattr(module, name, None) is original:
            setattr(module, name, wrapper)


def _bind(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """The arguments by name; None where they do not fit, so that the original raises what it raises."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    return dict(bound.arguments)


def _pairs(backend: Any) -> dict[str, str]:
    """``"cpu:mpi,cuda:nccl"`` as a dictionary; a plain name has the key "". Wrong ones give nothing."""
    parts = [part.strip().split(":") for part in str(backend or "").lower().split(",")]
    if len(parts) == 1 and len(parts[0]) == 1:
        return {"": parts[0][0]}
    return {part[0]: part[1] for part in parts} if all(len(part) == 2 for part in parts) else {}


def _is_ours(backend: Any) -> bool:
    return any(name in (MPI, OWN) for name in _pairs(backend).values())


# ---- The wrapped functions


def _init(original: Callable[..., Any], signature: inspect.Signature, args: Any, kwargs: Any) -> Any:
    arguments = _bind(signature, args, kwargs)
    if arguments is None or not _is_ours(arguments.get("backend")):
        return original(*args, **kwargs)
    plain = str(arguments["backend"]).lower() == MPI
    nothing_given = arguments.get("store") is None and arguments.get("init_method") is None
    if not plain and nothing_given and not all(name in os.environ for name in _RENDEZVOUS_VARIABLES):
        # torch would read the environment, which an MPI launcher does not set.
        kwargs = {**kwargs, "init_method": "mpi://"}
        args = args[:1]  # the second one is init_method, and nothing can follow it
    result = original(*args, **kwargs)
    _state["after_init"]()
    return result


def _make_group(original: Callable[..., Any], signature: inspect.Signature, args: Any, kwargs: Any) -> Any:
    arguments = _bind(signature, args, kwargs)
    if arguments is None or not _is_ours(arguments.get("backend")):
        return original(*args, **kwargs)
    asked = str(arguments["backend"]).lower()
    pairs = _pairs(asked)
    if arguments["group_size"] == -1:  # init_process_group("mpi"), which comes without a store
        world = _state["make_world"](arguments.get("timeout") or default_timeout())
        arguments["store"], arguments["group_rank"], arguments["group_size"] = world
    ranks = arguments["global_ranks_in_group"]
    member = not ranks or c10d._get_default_group().rank() in ranks
    others = {device: name for device, name in pairs.items() if name not in (MPI, OWN)}
    backends = _other_backends(original, arguments, others) if others and member else {}
    if "" in pairs:
        arguments["backend"] = OWN
    else:
        # One device only: the factory goes on to the next pair of another name, and would drop what it made before.
        device = next(device for device, name in pairs.items() if name in (MPI, OWN))
        arguments["backend"] = f"{device}:{OWN}"
    group, store = original(**arguments)
    if not hasattr(group, "adopt"):
        return group, store  # not a member, or another's group that was made before under the same tag
    devices = [device for device, name in pairs.items() if name in (MPI, OWN) and device] or ["cpu", "cuda"]
    group.adopt(asked, devices, backends)
    _rename(group, asked)
    return group, store


def _rename(group: Any, name: str) -> None:
    _, store = c10d._world.pg_map[group]
    c10d._world.pg_map[group] = (name, store)
    c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(c10d.Backend(name)))


def _other_backends(
    original: Callable[..., Any], arguments: dict[str, Any], others: dict[str, str]
) -> dict[str, Any]:
    """Let torch make the backends of the other devices, in a group of its own that nobody else sees."""
    name = f"{arguments['group_name']}/others"
    inner = {**arguments, "backend": ",".join(f"{device}:{other}" for device, other in others.items())}
    inner.update(group_name=name, pg_tag=None)
    group, _ = original(**inner)
    backends = {device: group._get_backend(torch.device(device)) for device in others}
    world = c10d._world
    tag = world.pg_to_tag.pop(group, None)
    for table in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config):
        table.pop(group, None)
    for members in (world.tags_to_pg.get(tag, []), world.tags_to_pg.get("", [])):
        if group in members:
            members.remove(group)
    if hasattr(c10d, "_unregister_process_group"):
        c10d._unregister_process_group(name)
    return backends


def _make_subgroup(original: Callable[..., Any], signature: inspect.Signature, args: Any, kwargs: Any) -> Any:
    """``use_local_synchronization=True``, which torch refuses for the name "mpi" since its own cannot do it."""
    arguments = _bind(signature, args, kwargs)
    if arguments is None or not arguments.get("use_local_synchronization"):
        return original(*args, **kwargs)
    default = c10d._get_default_group()
    asked = str(arguments.get("backend") or c10d._world.pg_map[default][0]).lower()
    if asked != MPI:
        return original(*args, **kwargs)
    arguments["backend"] = OWN
    with _counted_apart(arguments.get("ranks")):
        group = original(**arguments)
    if hasattr(group, "adopt"):
        _rename(group, MPI)
    return group


@contextlib.contextmanager
def _counted_apart(ranks: Any) -> Iterator[None]:
    """Keep a group that only its members make out of torch's count of groups.

    torch names groups by that count, and gloo meets under the name: it has to stay alike on members and others.
    """
    world = c10d._world
    key = tuple(sorted(ranks or ()))
    count, world.group_count = world.group_count, _APART + _state["apart"].get(key, 0)
    _state["apart"][key] = _state["apart"].get(key, 0) + 1
    try:
        yield
    finally:
        world.group_count = count


def _split(original: Callable[..., Any], signature: inspect.Signature, args: Any, kwargs: Any) -> Any:
    """``split_group``, which torch allows only where an accelerator is bound to the group."""
    arguments = _bind(signature, args, kwargs)
    parent = (arguments or {}).get("parent_pg") or c10d._get_default_group()
    if arguments is None or not hasattr(parent, "adopt"):
        return original(*args, **kwargs)
    ranks = parent.own_part(arguments.get("split_ranks"))
    if ranks is None:
        return None
    to_global = {inside: outside for outside, inside in c10d._world.pg_group_ranks[parent].items()}
    return c10d._new_group_with_tag(
        [to_global[rank] for rank in ranks],
        timeout=arguments.get("timeout"),
        backend=arguments.get("backend") or c10d._world.pg_map[parent][0],
        use_local_synchronization=True,
        group_desc=arguments.get("group_desc"),
    )


def _monitored_barrier(
    original: Callable[..., Any], signature: inspect.Signature, args: Any, kwargs: Any
) -> Any:
    arguments = _bind(signature, args, kwargs) or {}
    group = arguments.get("group") or c10d._get_default_group()
    if not hasattr(group, "adopt"):
        return original(*args, **kwargs)
    return group.monitored_barrier(arguments.get("timeout"), arguments.get("wait_all_ranks", False))


# ---- Groups and options


def init_base(group: Any, store: Any, rank: int, size: int) -> None:
    """Run the constructor of torch's ProcessGroup, which took no store before it took one."""
    try:
        dist.ProcessGroup.__init__(group, store, rank, size)
    except TypeError:
        dist.ProcessGroup.__init__(group, rank, size)


def default_group() -> Any:
    """The default process group, None before ``init_process_group``."""
    return c10d._get_default_group() if dist.is_initialized() else None


def reduction(opts: Any) -> tuple[int, Any]:
    """The number of the reduction in ``opts`` (or an op itself) and its factor, which only PREMUL_SUM has."""
    op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    code = int(getattr(op, "op", op))
    return code, op.__getstate__()[1] if code == PREMUL_SUM else None


def _codes() -> dict[int, str]:
    kinds = dist.ReduceOp.RedOpType
    names = {"SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max",
             "BAND": "band", "BOR": "bor", "BXOR": "bxor"}  # fmt: skip
    return {int(getattr(kinds, theirs)): ours for theirs, ours in names.items() if hasattr(kinds, theirs)}


OPS = _codes()
"""torch's numbers of the reductions -> hpccoll's names."""


def _number_is_hash() -> bool:
    opts = dist.AllreduceOptions()
    for name, kind in dist.ReduceOp.RedOpType.__members__.items():
        if hasattr(dist.ReduceOp, name) and name != "PREMUL_SUM":
            opts.reduceOp = getattr(dist.ReduceOp, name)
            if hash(opts.reduceOp) != int(kind):
                return False
    return True


def _number(op: Any) -> int:
    return int(op.op)


number_of: Callable[[Any], int] = hash if _number_is_hash() else _number
"""The number of a ``ReduceOp``. Its hash is that number, and costs a third of asking for it."""


def check_age() -> None:
    """Raise on a torch that drops Python's part of an operation and then waits for it for ever (2.6 does).

    Options that do not say whether the caller waits are the sign of such a version.
    """
    if not hasattr(dist.AllreduceOptions(), "asyncOp"):
        raise RuntimeError(
            f"torch {torch.__version__} is too old for the mpi backend: DDP would hang on it. Versions from 2.13 on "
            "are tested"
        )


PREMUL_SUM = int(getattr(dist.ReduceOp.RedOpType, "PREMUL_SUM", -1))


# ---- torch.compile


def hide_from_compiler(cls: type) -> type:
    """Class decorator: torch.compile runs the methods as they are and looks into nothing that they call.

    Inside a compiled region torch's C++ code calls them, and the compiler would take them for the user's program. Its
    own decorator for this imports the whole compiler and costs a microsecond a call.
    """
    evaluation: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    for value in vars(cls).values():
        code = getattr(getattr(value, "fget", value), "__code__", None)
        if code is None:
            continue
        if hasattr(evaluation, "set_code_exec_strategy"):
            skip = evaluation._FrameAction.SKIP
            evaluation.set_code_exec_strategy(code, evaluation._FrameExecStrategy(skip, skip))
        elif hasattr(evaluation, "skip_code"):
            evaluation.skip_code(code)
    return cls


# ---- Profiler

profiler_enabled = getattr(torch._C._autograd, "_profiler_enabled", torch.autograd._profiler_enabled)
"""Whether a profiler is recording; costs 60 ns, so that ranges cost nothing while it is not."""


_Range = getattr(getattr(torch._C, "_profiler", None), "_RecordFunctionFast", None)


def begin_range(name: str, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Begin a profiler range with the shapes of `tensors`; call what it returns, on any thread, to end it.

    As with torch's own backends the range is marked as asynchronous, that is: begun and ended by different threads.
    """
    if _Range is None:
        return lambda: None
    # Its __exit__ does nothing on a thread that the profiler does not know; letting go of the object ends the range.
    held = [_Range(name, list(tensors))]
    held[0].__enter__()
    here = threading.get_ident()

    def end() -> None:
        if threading.get_ident() != here:
            held.clear()
            return
        ender = threading.Thread(target=held.clear)
        ender.start()
        ender.join()

    return end


# ---- Devices of a group


def declare_devices(group: Any, devices: Sequence[str], backends: dict[str, Any]) -> None:
    """Tell torch which devices the group serves, and hand it the backends that are torch's own."""
    for device in devices:
        try:
            group._register_backend(torch.device(device), _own_type(), None)
        except (RuntimeError, TypeError):
            return  # only what _device_types tells depends on it
    for device, backend in backends.items():
        group._register_backend(torch.device(device), _type_of(backend), backend)


def _own_type() -> Any:
    return dist.ProcessGroup.BackendType.CUSTOM


def _type_of(backend: Any) -> Any:
    name = backend.name().upper() if hasattr(backend, "name") else ""
    return getattr(dist.ProcessGroup.BackendType, name, dist.ProcessGroup.BackendType.CUSTOM)
