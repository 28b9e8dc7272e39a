/* The device's own times of every kernel and copy of a program, by CUPTI's activity records:
 *
 *     cc -O2 -shared -fPIC -I CUDA/include kernel_times.c -o libkernel_times.so -L CUDA/lib -l:libcupti.so.13
 *     CUDA_INJECTION64_PATH=$PWD/libkernel_times.so KERNEL_TIMES=FILE.tsv PROGRAM...
 *
 * The driver loads the library that CUDA_INJECTION64_PATH names when it is initialised, and calls InitializeInjection. Each record
 * is one line of FILE.tsv: start and duration in nanoseconds, registers of a thread, bytes of shared memory of a block, grid, block,
 * the graph's number (0: launched by the host) and the name. Memory copies and sets have no registers and are named memcpy and memset;
 * the host's time for loading a module, which the driver compiles from PTX, and for instantiating a graph stands there as module_load
 * and graph_instantiate. */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER = 8 << 20 };
static FILE *out;

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *records) {
    *buffer = aligned_alloc(8, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *records = 0;
}

static const CUpti_CallbackId CALLS[] = {
    CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData,         CUPTI_DRIVER_TRACE_CBID_cuModuleLoadDataEx,
    CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate_v2,    CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags,
    CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams,
};
static int is_load(CUpti_CallbackId call) { return call == CALLS[0] || call == CALLS[1]; }

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)size;
    while (valid && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel9 *k = (const CUpti_ActivityKernel9 *)record; /* later versions only append fields */
            fprintf(out, "%llu\t%llu\t%u\t%d\t%d,%d,%d\t%d,%d,%d\t%u\t%s\n", (unsigned long long)k->start,
                    (unsigned long long)(k->end - k->start), (unsigned)k->registersPerThread,
                    k->staticSharedMemory + k->dynamicSharedMemory, k->gridX, k->gridY, k->gridZ, k->blockX, k->blockY, k->blockZ,
                    (unsigned)k->graphId, k->name ? k->name : "?");
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy6 *m = (const CUpti_ActivityMemcpy6 *)record;
            fprintf(out, "%llu\t%llu\t0\t0\t%llu,1,1\t1,1,1\t%u\tmemcpy\n", (unsigned long long)m->start,
                    (unsigned long long)(m->end - m->start), (unsigned long long)m->bytes, (unsigned)m->graphId);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const CUpti_ActivityMemset4 *m = (const CUpti_ActivityMemset4 *)record;
            fprintf(out, "%llu\t%llu\t0\t0\t%llu,1,1\t1,1,1\t%u\tmemset\n", (unsigned long long)m->start,
                    (unsigned long long)(m->end - m->start), (unsigned long long)m->bytes, (unsigned)m->graphId);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_DRIVER) {
            const CUpti_ActivityAPI *a = (const CUpti_ActivityAPI *)record;
            fprintf(out, "%llu\t%llu\t0\t0\t1,1,1\t1,1,1\t0\t%s\n", (unsigned long long)a->start,
                    (unsigned long long)(a->end - a->start), is_load(a->cbid) ? "module_load" : "graph_instantiate");
        }
    }
    free(buffer);
}

static void end(void) {
    cuptiActivityFlushAll(1);
    fclose(out);
}

int InitializeInjection(void) {
    const char *path = getenv("KERNEL_TIMES");
    out = path ? fopen(path, "w") : NULL;
    if (!out) {
        fprintf(stderr, "kernel_times: KERNEL_TIMES names no file that can be written\n");
        return 0;
    }
    const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
    if (cuptiActivityRegisterCallbacks(give, take) != CUPTI_SUCCESS) return 0;
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (cuptiActivityEnable(kinds[i]) != CUPTI_SUCCESS) return 0;
    for (unsigned i = 0; i < sizeof CALLS / sizeof *CALLS; i++) cuptiActivityEnableDriverApi(CALLS[i], 1);
    atexit(end);
    return 1;
}
