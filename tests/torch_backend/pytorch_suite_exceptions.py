"""The tests of PyTorch's own suite that need not pass, each with its reason; see run_pytorch_suite.py."""

EXCEPTIONS: dict[str, dict[str, str]] = {"mpi": {}, "gloo": {}}
