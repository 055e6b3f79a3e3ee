"""A pytest plugin for tests that run on every rank of an MPI job (``mpirun -n N python -m pytest --with-mpi``).

pytest-mpi brings the marks. This plugin adds what keeps N pytest sessions from misleading or hanging anybody:

- **A joint outcome.** After set-up, call and tear-down of every test all ranks meet, over a communicator that
  nothing else uses. A failure on one rank fails the test on all, each report names the failed ranks with their
  messages, and the session stops there: the next test's collectives would meet the wrong partners. A test that is
  skipped on some ranks only has failed. Different tests collected on different ranks: nothing runs.
- **A limit** of ``HPCCOLL_TEST_TIMEOUT_S`` seconds (60) for each of these phases, the meeting included;
  ``@pytest.mark.limit_s(300)`` sets another. When it is over, the Python stacks of all ranks are written to
  standard error and to files, and the job is aborted with a non-zero status. This works while the main thread
  sits in an MPI call. A rank that has failed waits for the others at most GRACE_S.
- **JUnit files per rank**: ``--mpi-junit-dir DIR --mpi-suite NAME`` writes ``DIR/NAME.rank0.xml`` and so on
  (``--junit-xml`` gets the rank into its name). They exist, and name the test, also when the job was aborted.
- **Quiet ranks**: rank 0 shows the progress, the others only their failures.

Modules that a developer may lack are imported by `need`: a skip, but a failure where HPCCOLL_TEST_REQUIRE is 1.

It is active with ``--with-mpi``, and in every process that an MPI launcher has started.
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, TextIO
from xml.sax.saxutils import escape, quoteattr

import pytest

LIMIT_S = float(os.environ.get("HPCCOLL_TEST_TIMEOUT_S", "60"))
# Starting MPI and importing torch on a busy machine takes its time, however small the limit of a test is.
START_LIMIT_S = max(LIMIT_S, 60.0)
# A rank that has failed gives the others this long to end the test too.
GRACE_S = float(os.environ.get("HPCCOLL_TEST_GRACE_S", "10"))
_POLL_S = 0.2
# Time for the stacks of the other ranks to be written, and for the launcher to pass on what was printed.
_COLLECT_S = 1.0
_DRAIN_S = 0.3
_ABORT_LIMIT_S = 5.0
_LONGEST_MESSAGE = 2000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mpi ranks")
    group.addoption("--mpi-junit-dir", metavar="DIR", help="write one JUnit file per rank into DIR")
    group.addoption("--mpi-suite", metavar="NAME", default="mpi", help="name of the suite in the JUnit files")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "limit_s(seconds): another time limit than HPCCOLL_TEST_TIMEOUT_S")
    config.addinivalue_line("markers", "large: needs gigabytes of memory; run by -m large")
    if config.getoption("--with-mpi", False) or _launched():
        plugin = RanksPlugin(config)
        config.pluginmanager.register(plugin, "hpccoll-ranks")


def need(module: str) -> Any:
    """Import a module that tests may do without on a developer's machine, but not in CI."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if os.environ.get("HPCCOLL_TEST_REQUIRE") == "1":
            raise
        pytest.skip(f"{module} is not installed ({error})", allow_module_level=True)


def _launched() -> bool:
    from hpccoll.environment import detect

    launch = detect()
    return launch is not None and (launch.size or 1) > 1


class RanksPlugin:
    """One rank's side of the session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.nodeid = ""
        self.watchdog = Watchdog()
        self.watchdog.arm("the start of MPI", START_LIMIT_S)
        self.watchdog.start()

        from mpi4py import MPI

        from hpccoll.gate import check_world

        try:
            check_world(MPI.COMM_WORLD)
        except Exception as error:
            raise pytest.UsageError(str(error)) from None
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size
        self.xml_path = self._place_junit()
        self.watchdog.join_ranks(self.comm, self.xml_path)
        self.watchdog.write_junit = self._write_junit_of_aborted
        self._placeholder("collection")

    # ---- set-up of the session

    def _place_junit(self) -> Path | None:
        option = self.config.option
        if option.mpi_junit_dir:
            path = Path(option.mpi_junit_dir) / f"{option.mpi_suite}.rank{self.rank}.xml"
        elif option.xmlpath:
            given = Path(option.xmlpath)
            path = given.with_name(f"{given.stem}.rank{self.rank}{given.suffix}")
        else:
            return None
        path = path.absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        option.xmlpath = str(path)
        return path

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        xml = self._junit()
        if xml is not None:
            xml.suite_name = self.config.option.mpi_suite
            xml.add_global_property("rank", str(self.rank))
            xml.add_global_property("ranks", str(self.size))
        if self.rank == 0:
            return
        manager = self.config.pluginmanager
        terminal = manager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal._tw._file = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)
        for name in ("lfplugin", "nfplugin", "stepwiseplugin"):  # one writer is enough for the cache
            plugin = manager.get_plugin(name)
            if plugin is not None:
                manager.unregister(plugin)

    def pytest_report_header(self) -> str:
        from hpccoll.gate import library_version

        return f"MPI: {self.size} ranks, {library_version()}; limit {LIMIT_S:g} s per test"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        self.watchdog.arm("collection", START_LIMIT_S)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        names = [item.nodeid for item in session.items]
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
        found = self.meet("collection", (digest, len(names), session.testsfailed))
        errors = [rank for rank, (_, _, failed) in enumerate(found) if failed]
        if len({digest for digest, _, _ in found}) > 1 or (errors and not session.testsfailed):
            counts = ", ".join(f"rank {rank}: {count} tests" for rank, (_, count, _) in enumerate(found))
            also = f"; errors on {_ranks(errors)}" if errors else ""
            missing = self._difference(names)
            report = pytest.CollectReport(
                "collection",
                "failed",
                f"the ranks did not collect the same tests ({counts}{also}){missing}",
                [],
            )
            self.config.hook.pytest_collectreport(
                report=report
            )  # counts, prints and goes into the JUnit file
        return (yield)

    def _difference(self, names: list[str]) -> str:
        everywhere = self.meet("collected tests", names)
        common = set(everywhere[0]).intersection(*everywhere[1:])
        lines = [
            f"\n  on rank {rank} only: {name}"
            for rank, had in enumerate(everywhere)
            for name in had
            if name not in common
        ]
        return "".join(lines[:20]) or "\n  they are the same in another order"

    # ---- the tests

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._placeholder(nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._arm(item, "set-up")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._arm(item, "call")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._arm(item, "tear-down")

    def _arm(self, item: pytest.Item, phase: str) -> None:
        mark = item.get_closest_marker("limit_s")
        self.watchdog.arm(f"{item.nodeid} ({phase})", float(mark.args[0]) if mark else LIMIT_S)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        message = ""
        if report.outcome == "failed":
            text = report.longreprtext
            message = _short(call, text)
            self.watchdog.failed(
                f"{item.nodeid} ({report.when}) failed on rank {self.rank}:\n{text}\n", at_once=self.rank > 0
            )
        elif report.outcome == "skipped":
            message = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr)[
                :_LONGEST_MESSAGE
            ]
        outcomes = self.meet(f"{item.nodeid} {report.when}", (report.outcome, message))
        self.watchdog.passed()
        self._join(item, report, outcomes)
        return report

    def _join(self, item: pytest.Item, report: pytest.TestReport, outcomes: list[tuple[str, str]]) -> None:
        failed = [rank for rank, (outcome, _) in enumerate(outcomes) if outcome == "failed"]
        if failed:
            summary = f"failed on {_ranks(failed)} of {self.size}"
            lines = [f"rank {rank}: {outcomes[rank][1]}" for rank in failed]
        elif len({outcome for outcome, _ in outcomes}) > 1:
            summary = "skipped on some ranks only"
            lines = [f"rank {rank}: {outcome} {message}" for rank, (outcome, message) in enumerate(outcomes)]
        else:
            return
        if self.size > 1:
            joint = "\n  ".join([f"{report.when} {summary}:", *lines])
            if report.outcome == "failed":
                report.sections.append(("joint outcome", joint))
            else:
                report.outcome = "failed"
                report.longrepr = joint
                report.__dict__.pop("wasxfail", None)
            self.stop_reason = (
                f"stopped after {item.nodeid}: {summary}; what follows would meet the wrong partners"
            )
            item.session.shouldfail = self.stop_reason

    # ---- the end

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self.watchdog.arm("the end of the session", START_LIMIT_S)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        # Nobody leaves before all have written their files: a launcher ends the job at the first non-zero status.
        self.meet("end of the session", None)
        self.watchdog.disarm()
        if self.size > 1:
            # A rank that cannot get through MPI_Finalize is ended by this signal; no Python runs any more then.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(START_LIMIT_S))

    def meet(self, place: str, value: Any) -> list[Any]:
        """All ranks exchange a value; the same call everywhere, so that meetings can only meet one another."""
        everybody = self.comm.allgather((place, value))
        if any(other != place for other, _ in everybody):
            where = "; ".join(f"rank {rank}: {other}" for rank, (other, _) in enumerate(everybody))
            self.watchdog.end(f"the ranks are not at the same place: {where}")
        self.watchdog.arm(f"what follows {place}", LIMIT_S)
        return [value for _, value in everybody]

    # ---- JUnit

    def _junit(self) -> Any:
        from _pytest.junitxml import xml_key

        return self.config.stash.get(xml_key, None)

    def _placeholder(self, nodeid: str) -> None:
        """A file that tells the truth if this process is killed now; the real one replaces it at the end."""
        self.nodeid = nodeid
        if self.xml_path is None:
            return
        module, _, test = nodeid.rpartition("::")
        suite = quoteattr(self.config.option.mpi_suite)
        text = (
            f'<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name={suite} errors="1" failures="0" '
            f'skipped="0" tests="1"><properties><property name="rank" value="{self.rank}"/></properties>'
            f"<testcase classname={quoteattr(module)} name={quoteattr(test)}>"
            f'<error message="rank {self.rank} was ended during this test">'
            f"{escape('The process was killed or died; see the output of the other ranks.')}</error></testcase>"
            "</testsuite></testsuites>"
        )
        aside = self.xml_path.with_suffix(".part")
        aside.write_text(text)
        os.replace(aside, self.xml_path)

    def _write_junit_of_aborted(self, reason: str, failure: str) -> None:
        """From the watchdog's thread, while the main thread is stuck."""
        xml = self._junit()
        if xml is None:
            return
        nodeid = self.nodeid
        text = "\n".join(part for part in (failure, f"the session was aborted: {reason}") if part)
        report = pytest.TestReport(nodeid, (nodeid, None, nodeid), {}, "failed", text, "call")
        xml.pytest_runtest_logreport(report)
        xml.pytest_sessionfinish()


class Watchdog(threading.Thread):
    """Ends the job when a limit is over, from a thread, because the main thread may be inside MPI."""

    def __init__(self) -> None:
        super().__init__(name="hpccoll test watchdog", daemon=True)
        self.place = ""
        self.write_junit: Any = None
        self._deadline = float("inf")
        self._failure = ""
        self._failure_shown = False
        self._ending = threading.Lock()
        # pytest captures file descriptor 2 during the tests; at this time it is the real one.
        self._stderr = os.dup(2)
        self._rank, self._size = 0, 1
        self._own_dir = Path(tempfile.mkdtemp(prefix="hpccoll-test-"))
        self._dir = self._own_dir
        self._peers: dict[int, int] = {}  # rank -> process id, on this host
        self._stack_paths = {0: self._own_dir / "rank0.stacks"}
        self._signal_file: TextIO | None = None

    def join_ranks(self, comm: Any, xml_path: Path | None) -> None:
        self._rank, self._size = comm.rank, comm.size
        stack_path = xml_path.with_suffix(".stacks") if xml_path else None
        here = socket.gethostname()
        ranks = comm.allgather((here, os.getpid(), str(self._own_dir), stack_path and str(stack_path)))
        self._peers = {rank: pid for rank, (host, pid, _, _) in enumerate(ranks) if host == here}
        self._dir = Path(next(directory for host, _, directory, _ in ranks if host == here))
        self._stack_paths = {
            rank: Path(path) if path else self._dir / f"rank{rank}.stacks"
            for rank, (_, _, _, path) in enumerate(ranks)
        }
        self._stack_paths[self._rank].unlink(missing_ok=True)
        # The signal handler of faulthandler needs neither the GIL nor the main thread's attention.
        self._signal_file = open(self._dir / f"rank{self._rank}.signal", "w")  # noqa: SIM115  (until the process ends)
        faulthandler.register(signal.SIGUSR1, file=self._signal_file, all_threads=True)

    def arm(self, place: str, limit_s: float) -> None:
        self.place = place
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        # Should Python itself be stuck (a C call that keeps the GIL), this one still ends the process.
        faulthandler.dump_traceback_later(limit_s + 2 * GRACE_S, exit=True, file=self._stderr)

    def disarm(self) -> None:
        self._deadline = float("inf")
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(self._own_dir, ignore_errors=True)

    def failed(self, text: str, at_once: bool) -> None:
        """This rank has failed: keep the text in case the job has to be aborted, and do not wait long."""
        self._failure, self._failure_shown = text, at_once
        if at_once:
            self._print(f"\n==== {text}")
        self._deadline = min(self._deadline, time.monotonic() + GRACE_S)

    def passed(self) -> None:
        self._failure = ""

    def run(self) -> None:
        while True:
            time.sleep(_POLL_S)
            if time.monotonic() > self._deadline:
                if self._failure:
                    self.end(
                        f"rank {self._rank} failed in {self.place}, and the others did not end it within {GRACE_S:g} s"
                    )
                self.end(f"the limit of {self._limit_s:g} s was over on rank {self._rank} in {self.place}")
            elif self._deadline != float("inf") and self._marker.exists():
                self.end(self._marker.read_text() or "another rank ended the job")

    @property
    def _marker(self) -> Path:
        return self._dir / "aborting"

    def end(self, reason: str) -> None:
        """Dump, report, abort; does not return."""
        if not self._ending.acquire(blocking=False):
            time.sleep(2 * _ABORT_LIMIT_S)
        try:
            leader = self._take_lead(reason)
            self._dump_own_stack()
            if self.write_junit is not None:
                self.write_junit(reason, self._failure)
            if not leader:
                if self._failure and not self._failure_shown:
                    self._print(f"\n==== {self._failure}")
                time.sleep(2 * _ABORT_LIMIT_S)  # the leader ends this process before that
            else:
                self._report(reason)
        except BaseException as error:  # whatever goes wrong here, the job must end
            self._print(f"rank {self._rank}: the watchdog failed: {error!r}\n")
        self._abort()

    def _take_lead(self, reason: str) -> bool:
        """One rank per host reports for all of it."""
        aside = self._dir / f"reason{self._rank}"
        aside.write_text(reason)
        try:
            os.link(aside, self._marker)
        except FileExistsError:
            return False
        return True

    def _dump_own_stack(self) -> None:
        with open(self._stack_paths[self._rank], "w") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)

    def _report(self, reason: str) -> None:
        for rank, pid in self._peers.items():
            if rank != self._rank:
                try:
                    os.kill(pid, signal.SIGUSR1)
                except ProcessLookupError:
                    pass
        time.sleep(_COLLECT_S)
        host = socket.gethostname()
        parts = [f"\n==== aborting the test session: {reason}\n"]
        if self._failure and not self._failure_shown:
            parts.append(self._failure)
        for rank in sorted({*self._peers, self._rank}):
            path = self._stack_paths[rank]
            if not _text(path):
                path.write_text(_text(self._dir / f"rank{rank}.signal"))
            parts.append(
                f"---- stacks of rank {rank} of {self._size} on {host} ({path})\n{_text(path) or '(none)'}\n"
            )
        self._print("".join(parts))

    def _abort(self) -> None:
        time.sleep(_DRAIN_S)
        threading.Timer(_ABORT_LIMIT_S, os._exit, [1]).start()
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.COMM_WORLD.Abort(1)
        os._exit(1)

    def _print(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        try:
            while data:
                data = data[os.write(self._stderr, data) :]
        except OSError:
            pass


def _short(call: pytest.CallInfo[None], text: str) -> str:
    error = call.excinfo.value if call.excinfo is not None else None
    message = f"{type(error).__name__}: {error}" if error is not None else text
    return message[:_LONGEST_MESSAGE]


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
