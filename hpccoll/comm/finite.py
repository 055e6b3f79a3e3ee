"""Is there a NaN or an infinity in what a rank sends?"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

__all__ = ["first_odd"]


def first_odd(x: Any) -> str | None:
    """Describe the first NaN or infinity of an array, tensor or number: where it is, and how many there are.

    Parameters
    ----------
    x
        What a rank sends. Whatever holds no floating-point numbers has none.

    Returns
    -------
    str or None
    """
    if isinstance(x, (float, complex)) and not isinstance(x, np.generic):
        return None if _is_finite(x) else f"it is {x}"
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _in_tensor(torch, x)
    if isinstance(x, (np.ndarray, np.generic)):
        return _in_array(np.asarray(x))
    return None


def _is_finite(number: complex) -> bool:
    return math.isfinite(number.real) and math.isfinite(number.imag)


def _in_array(x: Any) -> str | None:
    try:
        finite = np.isfinite(x)
    except TypeError:  # no numbers
        return None
    if finite.all():
        return None
    flat = int(np.argmin(finite.reshape(-1)))
    return _sentence(np.unravel_index(flat, x.shape), x.reshape(-1)[flat], int(x.size - finite.sum()), x.size)


def _in_tensor(torch: Any, x: Any) -> str | None:
    if not (x.is_floating_point() or x.is_complex()) or x.layout is not torch.strided:
        return None
    x = x.detach()
    if x.element_size() > 1 and bool(torch.isfinite(x.sum())):
        return None  # several times faster, and a sum that overflows is looked at below
    finite = torch.isfinite(x if x.element_size() > 1 else x.float())  # float8 has no arithmetic
    if bool(finite.all()):
        return None
    flat = int((~finite).reshape(-1).to(torch.uint8).argmax())
    index = np.unravel_index(flat, tuple(x.shape))
    return _sentence(index, x.reshape(-1)[flat].item(), int((~finite).sum()), x.numel())


def _sentence(index: Any, value: Any, odd: int, count: int) -> str:
    place = f"[{', '.join(str(int(i)) for i in index)}]"
    return f"{value} at {place}, {odd} of {count} elements are not finite"
