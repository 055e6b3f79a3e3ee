"""fake_mpirun.py N PROGRAM...: starts N ranks as Open MPI would name them, and exits 0 whatever becomes of them.

That is what Open MPI 5.0.11 does when it loses a host.
"""

import os
import subprocess
import sys

size = int(sys.argv[1])
processes = [
    subprocess.Popen(
        sys.argv[2:],
        env={**os.environ, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size)},
        start_new_session=True,  # mpirun gives its ranks groups of their own, too
    )
    for rank in range(size)
]
for process in processes:
    process.wait()
