"""drive_runner.py SIZE STARTED TIMEOUT START_TIMEOUT OUTPUT_DIR|- PROGRAM...: the runner on the fake mpirun.

STARTED ranks are started where SIZE are expected.
"""

import os
import sys
from pathlib import Path

from hpccoll.launch.commands import Command
from hpccoll.launch.monitor import Monitor
from hpccoll.launch.rank import REPORT
from hpccoll.launch.runner import run, stderr_line

size, started, timeout, start_timeout, directory, *program = sys.argv[1:]
fake = str(Path(__file__).with_name("fake_mpirun.py"))
output = [] if directory == "-" else ["--output-dir", directory]
rank = [sys.executable, "-m", "hpccoll.launch.rank", *output, "--", *program]
with Monitor(int(size), local=True) as monitor:
    sys.exit(
        run(
            Command((sys.executable, fake, started, *rank)),
            {**os.environ, REPORT: monitor.report},
            monitor,
            float(timeout) or None,
            float(start_timeout),
            stderr_line,
        )
    )
