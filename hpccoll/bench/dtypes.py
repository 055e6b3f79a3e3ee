"""The dtypes that the programs take: names, sizes, bit patterns.

Buffers are plain bytes here, and values are put into them and read back bit by bit. So verification needs
neither torch nor ml_dtypes, and does not share a conversion with the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DTYPES", "DType", "decode", "encode", "numpy_dtype", "torch_dtype"]


@dataclass(frozen=True)
class DType:
    """One element type.

    Attributes
    ----------
    name : str
        As torch and NumPy spell it.
    kind : str
        ``bool``, ``int``, ``uint``, ``float``, ``complex``, or ``opaque``: moved, but never reduced.
    itemsize : int
        Bytes.
    limit : int
        Integers up to this magnitude are exact (each part of a complex number).
    """

    name: str
    kind: str
    itemsize: int
    limit: int

    @property
    def needs_ml_dtypes(self) -> bool:
        """Whether NumPy knows it only through the package ml_dtypes."""
        return self.name == "bfloat16" or self.kind == "opaque"


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("bool", "bool", 1, 1),
        *(DType(f"int{8 * n}", "int", n, 2 ** (8 * n - 1) - 1) for n in (1, 2, 4, 8)),
        *(DType(f"uint{8 * n}", "uint", n, 2 ** (8 * n) - 1) for n in (1, 2, 4, 8)),
        DType("float16", "float", 2, 2**11),
        DType("bfloat16", "float", 2, 2**8),
        DType("float32", "float", 4, 2**24),
        DType("float64", "float", 8, 2**53),
        DType("complex64", "complex", 8, 2**24),
        DType("complex128", "complex", 16, 2**53),
        DType("float8_e4m3fn", "opaque", 1, 255),
        DType("float8_e5m2", "opaque", 1, 255),
    )
}


def encode(values: np.ndarray, dtype: DType) -> np.ndarray:
    """`values` (integers, or complex numbers with integer parts) as elements of `dtype`.

    bfloat16 comes as uint16 and the opaque types as uint8, bit by bit. Integers wrap around as in C;
    float16 and bfloat16 are rounded once, to nearest even, from float32.
    """
    import numpy as np

    result: np.ndarray
    if dtype.kind == "bool":
        result = (values != 0).astype(np.uint8)
    elif dtype.kind == "opaque":
        result = values.astype(np.uint8)
    elif dtype.name == "float16":
        result = values.astype(np.float32).astype(np.float16)
    elif dtype.name == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        result = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    else:
        result = values.astype(dtype.name)
    return result


def decode(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """The elements in the bytes `raw`, as NumPy numbers that compare and print as their value does."""
    import numpy as np

    if dtype.kind in ("bool", "opaque"):
        return raw.view(np.uint8)
    if dtype.name == "bfloat16":
        wide = raw.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return np.asarray(wide.view(np.float32))
    return raw.view(dtype.name)


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype; bfloat16 and float8 come from ml_dtypes."""
    import numpy as np

    if dtype.needs_ml_dtypes:
        import ml_dtypes

        known: Any = getattr(ml_dtypes, dtype.name)
    else:
        known = dtype.name
    result: np.dtype[Any] = np.dtype(known)
    return result


def torch_dtype(dtype: DType) -> Any:
    """The torch dtype."""
    import torch

    return getattr(torch, dtype.name)
