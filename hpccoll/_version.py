"""The version, in the one place that packaging and ``hpccoll.__version__`` both read."""

__version__ = "0.1.0"
