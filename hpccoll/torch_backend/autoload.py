"""What torch's entry points call.

``torch.backends`` runs inside ``import torch``: it never raises, imports no MPI and costs a few milliseconds. To have
torch leave it out, set ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``.
"""


def autoload() -> None:
    """Entry point ``torch.backends``: importing this module's package has registered the backend."""


def register_own_name() -> None:
    """Entry point ``torch.distributed.backends``, which newer versions of torch ask for the name ``"hpccoll"``."""
    from hpccoll.torch_backend.registration import register_own_name as register

    register()
