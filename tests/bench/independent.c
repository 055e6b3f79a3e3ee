/* An allreduce benchmark that shares nothing with hpccoll: least and median time of the slower rank, in microseconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Where the memory lies matters: as hpccoll's, touched, on a page, and input and output not alike. */
static char *page_aligned(int bytes) {
    void *memory;
    if (posix_memalign(&memory, 4096, bytes))
        exit(1);
    return memset(memory, 1, bytes);
}

int main(int argc, char **argv) {
    int rank, bytes = atoi(argv[1]), calls = atoi(argv[2]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    void *in = page_aligned(bytes + 4096) + 448, *out = page_aligned(bytes);
    double *mine = calloc(calls, sizeof(double)), *all = calloc(calls, sizeof(double));
    for (int i = -20; i < calls; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(in, out, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0)
            mine[i] = (MPI_Wtime() - start) * 1e6;
    }
    MPI_Reduce(mine, all, calls, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(all, calls, sizeof(double), ascending);
        printf("%f %f\n", all[0], all[calls / 2]);
    }
    MPI_Finalize();
    return 0;
}
