"""NumPy arrays and torch tensors as MPI buffers; the only dtype table.

A :class:`Buffer` is a block of host memory in C order that MPI may read or write, and the way back to the
object the caller gave. Whatever is plain (C-contiguous, on the CPU, native byte order) is used where it lies;
everything else is *staged*: copied into such a block before, or out of it after, the operation.

Torch tensors are handed over by address. DLPack, which mpi4py would use by itself, gives silently wrong sums
for bfloat16 and costs more than a small message does.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpccoll import cuda
from hpccoll.errors import ArgumentError, UnsupportedError

REDUCTIONS = frozenset(("allreduce", "reduce", "reduce_scatter", "scan", "exscan"))
"""The methods that compute: on host memory always, also where MPI could move device memory."""

_address = MPI.memory.fromaddress
_ndarray = np.ndarray


class DType(NamedTuple):
    """What an element is, whichever library holds it.

    Attributes
    ----------
    name : str
        The name that NumPy and torch share: ``"float32"``, ``"bfloat16"`` …
    itemsize : int
        Bytes per element.
    kind : str
        ``"bool"``, ``"int"``, ``"float"``, ``"half"``, ``"complex"``, or ``"opaque"`` for what can only be
        moved.
    mpi : MPI.Datatype or None
        The type in which MPI reduces it, for half ones by operations of our own; None for opaque ones.
    """

    name: str
    itemsize: int
    kind: str
    mpi: Any


_DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("bool", 1, "bool", MPI.UINT8_T),
        DType("int8", 1, "int", MPI.INT8_T),
        DType("int16", 2, "int", MPI.INT16_T),
        DType("int32", 4, "int", MPI.INT32_T),
        DType("int64", 8, "int", MPI.INT64_T),
        DType("uint8", 1, "int", MPI.UINT8_T),
        DType("uint16", 2, "int", MPI.UINT16_T),
        DType("uint32", 4, "int", MPI.UINT32_T),
        DType("uint64", 8, "int", MPI.UINT64_T),
        DType("float16", 2, "half", MPI.UINT16_T),
        DType("bfloat16", 2, "half", MPI.UINT16_T),
        DType("float32", 4, "float", MPI.FLOAT),
        DType("float64", 8, "float", MPI.DOUBLE),
        DType("longdouble", np.dtype(np.longdouble).itemsize, "float", MPI.LONG_DOUBLE),
        DType("complex64", 8, "complex", MPI.C_FLOAT_COMPLEX),
        DType("complex128", 16, "complex", MPI.C_DOUBLE_COMPLEX),
        DType("clongdouble", np.dtype(np.clongdouble).itemsize, "complex", MPI.C_LONG_DOUBLE_COMPLEX),
    )
}
_numpy_dtypes = {
    np.dtype(getattr(np, name)): dtype for name, dtype in _DTYPES.items() if name not in ("bool", "bfloat16")
}
_numpy_dtypes[np.dtype(bool)] = _DTYPES["bool"]
_torch_dtypes: dict[Any, DType] = {}
# For the short cut: the dtypes whose bytes are all there is to an element, and the classes that hold nothing else.
_torch_direct: dict[Any, DType] = {}
_numpy_direct = dict(_numpy_dtypes)
_plain_tensors: set[type] = set()


def dtype_of(dtype: Any) -> DType:
    """Return the table's entry for a NumPy or torch dtype; unknown ones are ``"opaque"``."""
    found = _numpy_dtypes.get(dtype) if isinstance(dtype, np.dtype) else _torch_dtypes.get(dtype)
    if found is not None:
        return found
    if isinstance(dtype, np.dtype):
        # ml_dtypes registers bfloat16 and the float8 family under the names that torch uses.
        found = _DTYPES.get(dtype.name) or DType(dtype.name, dtype.itemsize, "opaque", None)
        if dtype.isnative:
            _numpy_dtypes[dtype] = found
        return found
    name = str(dtype).removeprefix("torch.")
    kind = "quantized" if name.startswith(("qint", "quint")) else "opaque"
    found = _DTYPES.get(name) or DType(name, dtype.itemsize, kind, None)
    _torch_dtypes[dtype] = found
    if kind != "quantized" and found.kind != "complex":  # those may be conjugated views
        _torch_direct[dtype] = found
    return found


class Buffer:
    """Host memory in C order that MPI may use where it lies.

    Attributes
    ----------
    user : ndarray or torch.Tensor
        What the caller passed, or the new object that will be returned.
    memory : object
        The form that mpi4py takes beside an explicit count and datatype.
    dtype : DType
    shape : tuple of int
    count : int
        Elements.
    """

    __slots__ = ("count", "dtype", "memory", "shape", "user")
    staged = False

    def __init__(self, user: Any, memory: Any, dtype: DType, shape: Any, count: int):
        self.user = user
        self.memory = memory
        self.dtype = dtype
        self.shape = shape
        self.count = count

    @property
    def flat(self) -> Any:
        """The contiguous host object that MPI reads or writes."""
        return self.user

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def is_torch(self) -> bool:
        return not isinstance(self.user, _ndarray)

    @property
    def address(self) -> int:
        memory = self.memory
        return (
            memory.address
            if memory.__class__ is MPI.memory
            else MPI.memory.frombuffer(memory, readonly=True).address
        )

    @property
    def line(self) -> Any:
        """The elements as a one-dimensional view, of which autograd knows nothing."""
        flat = self.flat
        return (flat.detach() if self.is_torch else flat).reshape(-1)

    def typed(self) -> list[Any]:
        """The buffer specification for a reduction."""
        return [self.memory, self.count, self.dtype.mpi]

    def raw(self) -> list[Any]:
        """The buffer specification for moving bytes."""
        return [self.memory, self.count * self.dtype.itemsize, MPI.BYTE]

    def typed_part(self, start: int, stop: int) -> list[Any]:
        """The specification of the elements from `start` to `stop`."""
        size = self.dtype.itemsize
        return [_address(self.address + start * size, (stop - start) * size), stop - start, self.dtype.mpi]

    def finish(self) -> Any:
        """Bring a result to where it belongs; return the caller's object."""
        return self.user


class StagedBuffer(Buffer):
    """A copy in host memory, in C order, of what MPI cannot use where it lies.

    Attributes
    ----------
    flat : ndarray or torch.Tensor
        The copy.
    stream : torch.cuda.Stream or None
        The one that was current when the operation was issued.
    scalar : bool
        Whether the caller gets a NumPy scalar.
    """

    __slots__ = ("_flat", "scalar", "stream")
    staged = True

    def __init__(
        self, user: Any, flat: Any, memory: Any, dtype: DType, stream: Any = None, scalar: bool = False
    ):
        super().__init__(
            user, memory, dtype, user.shape, flat.numel() if hasattr(flat, "numel") else flat.size
        )
        self._flat = flat
        self.stream = stream
        self.scalar = scalar

    @property
    def flat(self) -> Any:
        return self._flat

    def finish(self) -> Any:
        if not self.is_torch:
            np.copyto(self.user, self._flat)
            return self.user[()] if self.scalar else self.user
        # Autograd must not see this: the collective is not a differentiable operation, and `user` may be a
        # leaf.
        if self.stream is None:
            self.user.detach().copy_(self._flat)
            return self.user
        import torch

        # The result belongs on the stream that was current when the operation was issued, whichever thread
        # ends it.
        with torch.cuda.device(self.user.device), torch.cuda.stream(self.stream):
            self.user.detach().copy_(self._flat)
            self.stream.synchronize()
        return self.user


def source(x: Any, method: str, name: str = "x") -> Buffer:
    """Open an input of a collective: MPI will read it.

    Parameters
    ----------
    x : ndarray or torch.Tensor or NumPy scalar
        Any shape, strides and byte order; may be read-only.
    method, name : str
        For the messages of errors.

    Returns
    -------
    Buffer

    Raises
    ------
    ArgumentError
        `x` is neither an array nor a tensor, or one whose memory cannot be reached.
    UnsupportedError
        Its dtype cannot travel between processes.
    """
    opener = _openers.get(x.__class__)
    return opener(x, method, name) if opener is not None else _odd_source(x, method, name)


def target(out: Any, like: Buffer, shape: tuple[int, ...], method: str, name: str = "out") -> Buffer:
    """Open the output of a collective: MPI will write it.

    Parameters
    ----------
    out : ndarray, torch.Tensor or None
        Where the caller wants the result; None makes a new object of the kind of `like`.
    like : Buffer
        The input: gives kind, dtype and device.
    shape : tuple of int
        The shape that the result has.

    Raises
    ------
    ArgumentError
        `out` has another kind, dtype, shape or device, is read-only, or has elements that share memory.
    """
    if out is None:
        return _new(like, shape)
    if out is like.user and out.shape == shape and not like.staged:
        if not like.is_torch and not out.flags.writeable:
            raise _read_only(method, name)
        return like
    user = like.user
    if out.__class__ is not user.__class__:
        _check_kind(out, user, method, name)
    if out.dtype is not user.dtype and out.dtype != user.dtype:
        raise ArgumentError(f"{method}: `{name}` must have dtype {user.dtype}, got {out.dtype}")
    if out.shape != shape:
        raise ArgumentError(f"{method}: `{name}` must have shape {tuple(shape)}, got {tuple(out.shape)}")
    if (
        user.__class__ is not _ndarray
        and like.is_torch
        and not (user.is_cpu and out.is_cpu)
        and out.device != user.device
    ):
        raise ArgumentError(f"{method}: `{name}` must be on device {user.device}, got {out.device}")
    return destination(out, method, name)


def _check_kind(out: Any, user: Any, method: str, name: str) -> None:
    kind = _ndarray if isinstance(user, _ndarray) else sys.modules["torch"].Tensor
    if not isinstance(out, kind):
        wanted = "NumPy array" if kind is _ndarray else "torch tensor"
        raise ArgumentError(f"{method}: `{name}` must be a {wanted}, as the input is; got {_kind_name(out)}")


def destination(x: Any, method: str, name: str = "x") -> Buffer:
    """Open an object that MPI will write, whatever its shape and dtype.

    Raises
    ------
    ArgumentError
        It cannot be written, or several of its elements share memory.
    """
    if x.__class__ is _ndarray or isinstance(x, _ndarray):
        flags = x.flags
        if not flags.writeable:
            raise _read_only(method, name)
        if flags.c_contiguous:
            return source(x, method, name)
        if _distinct(x.shape, x.strides, x.itemsize):
            return _numpy_staging(x, method, name, fill=False)
    else:
        if not _is_tensor(x) or not _is_strided(x) or x.is_contiguous():
            return source(x, method, name)
        if _distinct(x.shape, x.stride(), 1):
            return _torch_staging(x, method, name, fill=False)
    raise _shares_memory(method, name)


def check(x: Any, method: str, name: str, *, written: bool) -> None:
    """Raise what :func:`source`, or :func:`destination` for what is `written`, would, and open nothing."""
    if isinstance(x, _ndarray):
        _numpy_dtype(x, method, name)
        if written and not x.flags.writeable:
            raise _read_only(method, name)
        plain = not written or x.flags.c_contiguous or _distinct(x.shape, x.strides, x.itemsize)
    else:
        _check_tensor(x, method, name)
        plain = not written or x.is_contiguous() or _distinct(x.shape, x.stride(), 1)
    if not plain:
        raise _shares_memory(method, name)


def _read_only(method: str, name: str) -> ArgumentError:
    return ArgumentError(f"{method}: `{name}` is read-only; pass an array that may be written")


def _shares_memory(method: str, name: str) -> ArgumentError:
    return ArgumentError(
        f"{method}: several elements of `{name}` share memory (an expanded view): pass a copy"
    )


def direct(x: Any, out: Any, blocks: int = 0) -> tuple[Any, Any, int, DType] | None:
    """Open input and output at once if everything is plain; None sends one the long way.

    This is a short cut for small messages, whose time is that of the checks: it accepts only what :func:`source`,
    :func:`target` and :func:`same_memory` accept without copying, and never raises.

    Parameters
    ----------
    blocks : int
        0 if both have one shape; n if `out` has n blocks of the shape of `x`, -n the other way round.

    Returns
    -------
    tuple, or None
        The memory of the input (None if it is that of the output), the memory of the output, the elements of the
        smaller one, and the dtype.
    """
    cls = x.__class__
    if out.__class__ is not cls:
        return None
    if cls is _ndarray:
        kind = x.dtype
        dtype = _numpy_direct.get(kind)
        if dtype is None or out.dtype is not kind or not (x.flags.c_contiguous and out.flags.carray):
            return None
        if x is out:
            return (None, x, x.size, dtype) if not blocks else None
        if _shapes_fit(x, out, blocks) and (
            (x.base is None and out.base is None) or not np.may_share_memory(x, out)
        ):
            return x, out, (x if blocks >= 0 else out).size, dtype
        return None
    if cls not in _plain_tensors or (dtype := _torch_direct.get(kind := x.dtype)) is None:
        return None
    try:
        return _direct_tensors(x, out, blocks, kind, dtype)
    except (RuntimeError, ValueError):  # tensors without plain memory: sparse, nested, freed ...
        return None


def _direct_tensors(
    x: Any, out: Any, blocks: int, kind: Any, dtype: DType
) -> tuple[Any, Any, int, DType] | None:
    if not (out.is_cpu and out.is_contiguous()) or out.is_neg() or out.dtype is not kind:
        return None
    second, count = out.data_ptr(), out.numel()
    if x is out:
        return (None, _address(second, count * dtype.itemsize), count, dtype) if not blocks else None
    if not (x.is_cpu and x.is_contiguous()) or x.is_neg():
        return None
    first = x.data_ptr()
    if not blocks:
        size = out_size = count * dtype.itemsize
        fits = x.shape == out.shape
    else:
        size, out_size = x.nbytes, out.nbytes
        fits = _shapes_fit(x, out, blocks)
        count = min(count, x.numel())
    if fits and (first + size <= second or second + out_size <= first):
        return _address(first, size), _address(second, out_size), count, dtype
    return None


def _shapes_fit(x: Any, out: Any, blocks: int) -> bool:
    if not blocks:
        return bool(x.shape == out.shape)
    if blocks > 0:
        return out.shape == (blocks, *x.shape)
    return x.shape == (-blocks, *out.shape)


def same_memory(send: Buffer, recv: Buffer, method: str) -> bool:
    """Tell whether input and output are one block of memory, which MPI calls in place.

    Raises
    ------
    ArgumentError
        They overlap in part.
    """
    if send is recv:
        return True
    if send.staged or recv.staged or not send.count or not recv.count:
        return False
    if send.user.__class__ is _ndarray and not np.may_share_memory(send.user, recv.user):
        return False
    first, second = send.address, recv.address
    if first == second and send.count == recv.count:
        return True
    if first < second + recv.nbytes and second < first + send.nbytes:
        raise ArgumentError(
            f"{method}: `out` overlaps `x` in part: pass `x` itself to work in place, or separate memory"
        )
    return False


def scratch(like: Buffer, dtype: Any, count: int) -> Buffer:
    """Make working memory of `count` elements, in the library of `like`; `dtype` is a name."""
    if like.is_torch:
        import torch

        return _plain_tensor(torch.empty(count, dtype=getattr(torch, dtype)))
    array = np.empty(count, like.flat.dtype if dtype == like.dtype.name else dtype)
    entry = dtype_of(array.dtype)
    return Buffer(array, _exportable(array, entry), entry, array.shape, count)


def _odd_source(x: Any, method: str, name: str) -> Buffer:
    """Open an object of a class not met before; remember how, where its class says all."""
    if _is_tensor(x):
        import torch

        for cls in (torch.Tensor, torch.nn.Parameter):
            _openers[cls] = _torch_source
            _plain_tensors.add(cls)
        return (_torch_source if x.__class__ in _openers else _torch_subclass)(x, method, name)
    if isinstance(x, np.generic):
        array = np.asarray(x)
        plain = _numpy_staging(array, method, name)
        return StagedBuffer(array, plain.flat, plain.memory, plain.dtype, scalar=True)
    if isinstance(x, _ndarray):
        return _numpy_staging(x, method, name)
    raise ArgumentError(
        f"{method}: `{name}` must be a NumPy array or a torch tensor, got {_kind_name(x)}"
        + (" (np.asarray makes an array of it)" if isinstance(x, (list, tuple)) else "")
    )


def copy_of(x: Any) -> Any:
    """Copy an array or a tensor."""
    return x.clone() if _is_tensor(x) else x.copy()


# ---- NumPy


def _exportable(array: np.ndarray, dtype: DType) -> Any:
    # Only the types that NumPy itself defines export the buffer protocol; a byte view always does.
    if dtype.kind == "opaque" or dtype.name == "bfloat16":
        return array.reshape(-1).view(np.uint8)
    return array


def _numpy_source(x: np.ndarray, method: str, name: str) -> Buffer:
    dtype = _numpy_dtypes.get(x.dtype)
    if dtype is not None and x.flags.c_contiguous:
        return Buffer(x, _exportable(x, dtype), dtype, x.shape, x.size)
    return _numpy_staging(x, method, name)


def _numpy_staging(x: np.ndarray, method: str, name: str, fill: bool = True) -> Buffer:
    dtype = _numpy_dtype(x, method, name)
    native = x.dtype.newbyteorder("=")
    if x.flags.c_contiguous and x.dtype == native:
        return Buffer(x, _exportable(x, dtype), dtype, x.shape, x.size)
    flat = np.empty(x.shape, native)
    if fill:
        np.copyto(flat, x)
    return StagedBuffer(x, flat, _exportable(flat, dtype), dtype)


def _numpy_dtype(x: np.ndarray, method: str, name: str) -> DType:
    if x.dtype.hasobject or x.dtype.kind == "T":
        raise UnsupportedError(
            f"{method}: `{name}` holds Python objects (dtype {x.dtype}), which live in one process only; "
            "use broadcast_object, allgather_object, gather_object or scatter_object"
        )
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentError(
            f"{method}: `{name}` is a masked array; its mask would be lost: send .data and .mask"
        )
    return dtype_of(x.dtype.newbyteorder("="))


# ---- torch


def _is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _is_strided(x: Any) -> bool:
    return x.layout is sys.modules["torch"].strided


def _plain_tensor(x: Any) -> Buffer:
    dtype = _torch_dtypes.get(x.dtype) or dtype_of(x.dtype)
    count = x.numel()
    return Buffer(x, _address(x.data_ptr(), count * dtype.itemsize), dtype, x.shape, count)


def _torch_source(x: Any, method: str, name: str) -> Buffer:
    try:
        if x.is_cpu and x.is_contiguous():
            dtype = _torch_dtypes.get(x.dtype) or dtype_of(x.dtype)
            if not x.is_neg() and dtype.kind != "quantized" and not (dtype.kind == "complex" and x.is_conj()):
                count = x.numel()
                return Buffer(x, _address(x.data_ptr(), count * dtype.itemsize), dtype, x.shape, count)
    except (RuntimeError, ValueError) as error:
        _check_tensor(x, method, name)
        reason = str(error).partition("\n")[0]
        raise ArgumentError(f"{method}: the memory of `{name}` cannot be reached: {reason}") from None
    return _torch_staging(x, method, name)


def _torch_subclass(x: Any, method: str, name: str) -> Buffer:
    _check_tensor(x, method, name)
    return _torch_source(x, method, name)


def _torch_staging(x: Any, method: str, name: str, fill: bool = True) -> Buffer:
    _check_tensor(x, method, name)
    import torch

    plain = x.detach()
    stream = None
    if x.is_cpu:
        flat = torch.empty(x.shape, dtype=x.dtype)
    elif cuda.enabled() and method not in REDUCTIONS and x.is_contiguous():
        torch.cuda.current_stream(x.device).synchronize()
        return _plain_tensor(x)
    else:
        stream = torch.cuda.current_stream(x.device)
        flat = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    if fill:
        flat.copy_(
            plain
        )  # materialises conjugate and negative views; from CUDA it waits for the current stream
    plain_flat = _plain_tensor(flat)
    return StagedBuffer(x, flat, plain_flat.memory, plain_flat.dtype, stream)


def _check_tensor(x: Any, method: str, name: str) -> None:
    import torch

    if hasattr(x.__class__, "__tensor_flatten__") or x.__class__.__name__ == "FakeTensor":
        raise UnsupportedError(
            f"{method}: `{name}` is a {x.__class__.__name__} around other tensors; pass the one inside (x.to_local())"
        )
    if x.is_nested:
        raise UnsupportedError(
            f"{method}: `{name}` is a nested tensor; send its parts (x.unbind()) one by one"
        )
    if x.layout != torch.strided:
        raise UnsupportedError(
            f"{method}: `{name}` has layout {x.layout}; pass a strided tensor (x.to_dense())"
        )
    if x.is_quantized:
        raise UnsupportedError(f"{method}: `{name}` is quantized; send x.int_repr() and its scale")
    if x.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"{method}: `{name}` is on device {x.device}; pass a tensor on the CPU or a CUDA device"
        )


# ---- both


def _new(like: Buffer, shape: tuple[int, ...]) -> Buffer:
    user = like.user
    if like.is_torch:
        import torch

        made = torch.empty(shape, dtype=user.dtype, device=user.device)
        return _plain_tensor(made) if made.is_cpu else _torch_staging(made, "", "", fill=False)
    flat = np.empty(shape, like.flat.dtype)
    memory = _exportable(flat, like.dtype)
    scalar = like.staged and like.scalar and not shape  # type: ignore[attr-defined]
    if scalar or user.dtype != flat.dtype:  # the caller gets back what was passed in, byte order and all
        return StagedBuffer(np.empty(shape, user.dtype), flat, memory, like.dtype, scalar=scalar)
    return Buffer(flat, memory, like.dtype, shape, flat.size)


def _distinct(shape: Any, strides: Any, width: int) -> bool:
    """Tell whether no two elements of a strided view share memory; True is certain, False is not.

    `strides` and the `width` of an element are in one unit: bytes for NumPy, elements for torch.
    """
    if 0 in shape:
        return True
    reach = width
    for stride, length in sorted(
        (abs(stride), length) for stride, length in zip(strides, shape, strict=True) if length > 1
    ):
        if stride < reach:
            return False
        reach += stride * (length - 1)
    return True


def _kind_name(x: Any) -> str:
    return (
        "None"
        if x is None
        else f"a {x.__class__.__module__}.{x.__class__.__qualname__}".replace("a builtins.", "a ")
    )


_openers: dict[type, Any] = {_ndarray: _numpy_source}
