// A stand-in for NCCL between processes of one machine that compute on the emulated device: values go through shared memory and are
// added in the order of the ranks. FAKE_NCCL_FAIL=HOW:N: rank 1 does not make the Nth sum: it returns an error (error), tells of one
// later (later), is killed (kill), waits for ever (wait), or has no memory left (memory), of which the others are told as of a remote
// error. FAKE_NCCL_VERSION: the version that it tells.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
extern "C" int cuMemGetInfo_v2(size_t *, size_t *);
extern "C" int cuMemAlloc_v2(uint64_t *, size_t);
extern "C" int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
extern "C" int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
extern "C" int cuStreamSynchronize(void *);

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7, FLOAT32 = 7, SUM = 0 };
const size_t PIECE = 1 << 20, MOST = 8;

struct Shared {
    std::atomic<uint64_t> arrived;
    std::atomic<bool> failed;
    float values[MOST][PIECE];
};
struct Id {
    char name[128];
};
struct Comm {
    int ranks, rank;
    uint64_t rounds, sums;
    int error;
    Shared *shared;
    bool meet() {
        shared->arrived++;
        for (uint64_t all = ++rounds * ranks; shared->arrived < all && !shared->failed;) usleep(50);
        return !shared->failed;
    }
};

API int ncclGetVersion(int *version) {
    const char *told = getenv("FAKE_NCCL_VERSION");
    return *version = told ? atoi(told) : 22703, SUCCESS;
}

API int ncclGetUniqueId(Id *id) {
    snprintf(id->name, sizeof id->name, "/fake-nccl-%d-%ld", getpid(), (long)random());
    int file = shm_open(id->name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(Shared))) return SYSTEM_ERROR;
    close(file);
    return SUCCESS;
}

API int ncclCommInitRank(Comm **comm, int ranks, Id id, int rank) {
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    if (blocking && *blocking == '0') return IN_PROGRESS;
    if (ranks < 1 || ranks > (int)MOST || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    int file = shm_open(id.name, O_RDWR, 0600);
    void *shared = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) return SYSTEM_ERROR;
    close(file);
    *comm = new Comm{ranks, rank, 0, 0, SUCCESS, (Shared *)shared};
    (*comm)->meet();
    if (rank == 0) shm_unlink(id.name);
    return SUCCESS;
}

API int ncclAllReduce(const void *sent, void *received, size_t count, int type, int operation, Comm *comm, void *stream) {
    if (type != FLOAT32 || operation != SUM) return INVALID_ARGUMENT;
    const char *fail = getenv("FAKE_NCCL_FAIL"), *number = fail ? strchr(fail, ':') : nullptr;
    if (++comm->sums == (number ? strtoull(number + 1, nullptr, 10) : 0) && comm->rank == 1) switch (*fail) {
        case 'e': return SYSTEM_ERROR;
        case 'l': return comm->error = REMOTE_ERROR, SUCCESS;
        case 'm': {
            size_t free, total;
            uint64_t taken;
            if (cuMemGetInfo_v2(&free, &total) || cuMemAlloc_v2(&taken, free - (1 << 20))) abort();
            return comm->shared->failed = true, UNHANDLED_CUDA_ERROR;
        }
        case 'k': raise(SIGKILL);
        case 'w': for (;;) pause();
    }
    std::vector<float> sums;
    for (size_t start = 0; start < count; start += PIECE) {
        size_t size = count - start < PIECE ? count - start : PIECE;
        if (cuMemcpyDtoHAsync_v2(comm->shared->values[comm->rank], (uint64_t)sent + 4 * start, 4 * size, stream) ||
            cuStreamSynchronize(stream))
            return UNHANDLED_CUDA_ERROR;
        if (!comm->meet()) return comm->error = REMOTE_ERROR, SUCCESS;
        sums.assign(comm->shared->values[0], comm->shared->values[0] + size);
        for (int rank = 1; rank < comm->ranks; rank++)
            for (size_t i = 0; i < size; i++) sums[i] += comm->shared->values[rank][i];
        comm->meet();
        if (cuMemcpyHtoDAsync_v2((uint64_t)received + 4 * start, sums.data(), 4 * size, stream) || cuStreamSynchronize(stream))
            return UNHANDLED_CUDA_ERROR;
    }
    return SUCCESS;
}

API int ncclCommGetAsyncError(Comm *comm, int *error) { return *error = comm->error, SUCCESS; }

API const char *ncclGetErrorString(int code) {
    switch (code) {
    case UNHANDLED_CUDA_ERROR: return "unhandled cuda error";
    case SYSTEM_ERROR: return "unhandled system error";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    default: return "invalid argument";
    }
}
