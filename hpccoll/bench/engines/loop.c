/* The timed loop in C, on the communicator, the buffers and the MPI library of the Python process.
   Compiled on demand by c_engine.py; needs nothing but MPI. */
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE
#else
#define _POSIX_C_SOURCE 200112L
#endif
#include <mpi.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum { ALLREDUCE, BROADCAST, REDUCE, ALLGATHER, GATHER, SCATTER, REDUCE_SCATTER, ALLTOALL, SENDRECV, BARRIER };

typedef struct {
    int64_t collective;
    void *send; /* NULL with in_place */
    void *recv;
    int64_t send_count; /* of one block, in elements of type */
    int64_t recv_count;
    int64_t in_place;
    int64_t root, dest, source;
    /* MPI handles as mpi4py gives them: a pointer or an int, in the low bytes. */
    uint64_t comm, type, op;
} call_t;

#define HANDLE(kind, name, bits)                                                                                       \
    kind name;                                                                                                         \
    memcpy(&name, &(bits), sizeof name)

/* The same clock as Python's time.perf_counter_ns. */
static int64_t now_ns(void) {
#if defined(__APPLE__)
    return (int64_t)clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
#endif
}

/* Version text of the library that this file was linked to; at most size bytes. */
void hpccoll_library(char *text, int64_t size) {
    char whole[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(whole, &length);
    strncpy(text, whole, (size_t)size - 1);
    text[size - 1] = 0;
}

#ifdef HPCCOLL_MAIN
#include <stdio.h>
int main(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    hpccoll_library(text, sizeof text);
    return puts(text) < 0;
}
#endif

int64_t hpccoll_sizes(void) { return (int64_t)(sizeof(MPI_Comm) | sizeof(MPI_Datatype) << 8 | sizeof(MPI_Op) << 16); }

static int once(const call_t *c) {
    HANDLE(MPI_Comm, comm, c->comm);
    HANDLE(MPI_Datatype, type, c->type);
    HANDLE(MPI_Op, op, c->op);
    const void *send = c->in_place ? MPI_IN_PLACE : c->send;
    void *recv = c->recv;
    int sends = (int)c->send_count, recvs = (int)c->recv_count, root = (int)c->root;
    switch (c->collective) {
    case ALLREDUCE: return MPI_Allreduce(send, recv, recvs, type, op, comm);
    case BROADCAST: return MPI_Bcast(recv, recvs, type, root, comm);
    case REDUCE: return MPI_Reduce(send, recv, sends, type, op, root, comm);
    case ALLGATHER: return MPI_Allgather(send, sends, type, recv, recvs, type, comm);
    case GATHER: return MPI_Gather(send, sends, type, recv, recvs, type, root, comm);
    case SCATTER: return MPI_Scatter(send, sends, type, recv, recvs, type, root, comm);
    case REDUCE_SCATTER: return MPI_Reduce_scatter_block(send, recv, recvs, type, op, comm);
    case ALLTOALL: return MPI_Alltoall(send, sends, type, recv, recvs, type, comm);
    case SENDRECV:
        return MPI_Sendrecv(send, sends, type, (int)c->dest, 0, recv, recvs, type, (int)c->source, 0, comm,
                            MPI_STATUS_IGNORE);
    case BARRIER: return MPI_Barrier(comm);
    default: return MPI_ERR_OTHER;
    }
}

/* Makes `number` calls one after the other, and that `repeats` times; clock[0] and clock[1] are before the first and
   after the last. Returns the first MPI error code. */
int64_t hpccoll_run(const call_t *parts, int64_t number, int64_t repeats, int64_t *clock) {
    int error = MPI_SUCCESS;
    clock[0] = now_ns();
    for (int64_t i = 0; i < repeats; i++)
        for (int64_t k = 0; k < number && error == MPI_SUCCESS; k++)
            error = once(&parts[k]);
    clock[1] = now_ns();
    return error;
}
