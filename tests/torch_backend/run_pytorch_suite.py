"""PyTorch's own tests of torch.distributed, run by every rank of an MPI job::

    mpirun -n 3 python tests/torch_backend/run_pytorch_suite.py --backend mpi --json mpi-3.json

The wheel ships them as a base class (``DistributedTest._DistTestBase``) that its authors run in processes of their
own making. Here the ranks come from the launcher: each test gets a new process group, and after each the ranks agree
on its outcome. With ``--backend gloo`` the same tests say what can be expected of a backend on CPUs.

Each test decides by the name of the backend whether to run. One that leaves out "mpi" is given a second chance, on the
mpi backend, in a copy of the module that was told "gloo": so everything that gloo has to pass is asked of mpi.

pytorch_suite_exceptions.py lists the tests that need not pass. The run fails when another one fails, and when a listed
one passes.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
import unittest
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

ALSO_FOR_MPI = {"ddp", "subgroup"}
"""Features that PyTorch's table does not grant to mpi."""


def main() -> int:
    options = _options()
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    faulthandler.dump_traceback_later(options.limit_s, exit=True)
    _prepare_environment(options, world)
    os.environ["HPCCOLL_TORCH_ABORT"] = "0"  # failures are this program's to report
    suites = _load(options, world)
    names = [name for name in unittest.TestLoader().getTestCaseNames(suites[0]) if options.only in name]
    outcomes = {}
    for name in names:
        outcomes[name] = _run(suites, name, world)
        if world.rank == 0 and options.verbose:
            print(f"{outcomes[name]['outcome']:>7}  {outcomes[name]['time_s']:6.2f} s  {name}", flush=True)
    return _report(outcomes, world, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="mpi", choices=["mpi", "gloo"])
    parser.add_argument("--only", default="", help="run the tests whose names contain this")
    parser.add_argument("--json", type=Path, help="where rank 0 writes the outcomes")
    parser.add_argument(
        "--limit-s", type=float, default=240, help="the whole run ends with stacks after this"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=0, help="the groups' timeout; 0 leaves torch's default"
    )
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser.parse_args()


def _prepare_environment(options: argparse.Namespace, world: Any) -> None:
    folder = world.bcast(tempfile.mkdtemp(prefix="pytorch-suite-") if world.rank == 0 else None)
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    os.environ.update(
        BACKEND=options.backend,
        WORLD_SIZE=str(world.size),
        RANK=str(world.rank),
        TEMP_DIR=folder,
        MASTER_ADDR="localhost",
        MASTER_PORT="0",
    )
    # Every store looks its peers' names up; a name server that drops one question in a hundred costs 5 s each time.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    world.Barrier()


def _load(options: argparse.Namespace, world: Any) -> list[type]:
    """The tests as classes that unittest can run in this process, the first choice first."""
    from torch.testing._internal import common_distributed

    import hpccoll.torch_backend  # noqa: F401

    features = common_distributed.DistTestCases
    if options.backend == "mpi":
        for name, backends in features.backend_feature.items():
            if name in ALSO_FOR_MPI:
                backends.add("mpi")
        for backends in features.skip_collective.values():
            backends.discard("mpi")
    from torch.testing._internal.distributed import distributed_test

    if options.backend == "gloo":
        return [_as_class(distributed_test, options, world)]
    return [
        _as_class(distributed_test, options, world),
        _as_class(_copy_for_gloo(distributed_test), options, world),
    ]


def _copy_for_gloo(module: Any) -> Any:
    os.environ["BACKEND"] = "gloo"
    spec = importlib.util.spec_from_file_location("distributed_test_for_gloo", module.__file__)
    assert spec is not None and spec.loader is not None
    copy = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    os.environ["BACKEND"] = copy.BACKEND = "mpi"
    return copy


def _as_class(distributed_test: Any, options: argparse.Namespace, world: Any) -> type:
    import torch.distributed as dist
    from torch.testing._internal.common_utils import TestCase

    class PyTorchSuite(TestCase, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
        rank = world.rank
        world_size = world.size
        file_name = os.path.join(os.environ["TEMP_DIR"], "file")
        init_method = "mpi://"
        destroy_pg_upon_exit = False
        skip_return_code_checks: list[Any] = []

        def setUp(self) -> None:
            super().setUp()
            if world.rank == 0:
                for path in Path(os.environ["TEMP_DIR"], "test_dir").iterdir():
                    path.unlink()
                distributed_test.Barrier.init()
            world.Barrier()
            distributed_test.Barrier.barrier_id = 0
            timeout = timedelta(seconds=options.timeout_s) if options.timeout_s else None
            method = "mpi://" if options.backend != "mpi" else None
            dist.init_process_group(options.backend, init_method=method, timeout=timeout)

        def tearDown(self) -> None:
            world.Barrier()
            if dist.is_initialized():
                dist.destroy_process_group()
            world.Barrier()
            super().tearDown()

    return PyTorchSuite


def _run(suites: list[type], name: str, world: Any) -> dict[str, Any]:
    """Run one test on all ranks, in the first form that does not skip itself."""
    for suite in suites:
        found = _run_form(suite, name, world)
        if found["outcome"] != "skipped":
            break
    return found


def _run_form(suite: type, name: str, world: Any) -> dict[str, Any]:
    """The worst outcome of any rank is the test's."""
    started = time.perf_counter()
    outcome, detail = _run_here(suite(name))
    outcomes = world.allgather((outcome, detail))
    order = ["passed", "skipped", "failed"]
    worst = max((outcome for outcome, _ in outcomes), key=order.index)
    rank = [outcome for outcome, _ in outcomes].index(worst)
    if worst == "failed":
        failed = [rank for rank, (outcome, _) in enumerate(outcomes) if outcome == "failed"]
        detail = f"ranks {failed}; rank {rank}: {outcomes[rank][1]}"
        if len(failed) != world.size:
            detail += "\n(the other ranks went on; what follows may suffer from it)"
    else:
        detail = outcomes[rank][1]
    return {"outcome": worst, "detail": detail, "time_s": time.perf_counter() - started}


def _run_here(test: Any) -> tuple[str, str]:
    result = unittest.TestResult()
    leave = sys.exit
    try:
        sys.exit = _exit  # type: ignore[assignment]  # also in place of hpccoll's, set by init_process_group
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            test(result)
    except BaseException:
        return "failed", traceback.format_exc()
    finally:
        sys.exit = leave
    for problems in (result.errors, result.failures):
        if problems:
            return "failed", problems[0][1]
    if result.unexpectedSuccesses:
        return "failed", "an unexpected success"
    if result.skipped:
        return "skipped", result.skipped[0][1]
    return "passed", ""


def _exit(code: Any = None) -> None:
    """PyTorch's processes end with a status that stands for a reason to skip."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    for skip in TEST_SKIPS.values():
        if skip.exit_code == code:
            raise unittest.SkipTest(skip.message)
    raise AssertionError(f"exit status {code}")


def _report(outcomes: dict[str, dict[str, Any]], world: Any, options: argparse.Namespace) -> int:
    from pytorch_suite_exceptions import EXCEPTIONS

    listed = EXCEPTIONS.get(options.backend, {})
    counts = {
        kind: sum(found["outcome"] == kind for found in outcomes.values())
        for kind in ("passed", "failed", "skipped")
    }
    unlisted = [
        name for name, found in outcomes.items() if found["outcome"] == "failed" and name not in listed
    ]
    stale = [name for name in listed if outcomes.get(name, {}).get("outcome") == "passed"]
    if not options.only:
        stale += [f"{name} (there is no such test)" for name in listed if name not in outcomes]
    if world.rank == 0:
        if options.json:
            summary = {"backend": options.backend, "ranks": world.size, "counts": counts, "tests": outcomes}
            options.json.write_text(json.dumps(summary, indent=1))
        for name in unlisted:
            print(f"\nFAILED {name}\n{outcomes[name]['detail']}")
        for name in stale:
            print(f"\nLISTED in pytorch_suite_exceptions.py, but passes: {name}")
        print(
            f"\nPyTorch's own tests, {options.backend}, {world.size} ranks: {counts['passed']} passed, "
            f"{counts['failed']} failed ({counts['failed'] - len(unlisted)} of them listed), "
            f"{counts['skipped']} skipped",
            flush=True,
        )
    return 1 if unlisted or stale else 0


if __name__ == "__main__":
    sys.exit(main())
