// A thread of a block, as the runtime (run.cpp) and compiled kernels (device.h) see it.
#pragma once
#include <stdint.h>

struct fake_uint3 { unsigned x, y, z; };

struct FakeThread {
    fake_uint3 tid, bid, bdim, gdim;
    char *shared;     // dynamic shared memory of the block
    unsigned lane, warp;
    // used by run.cpp alone
    void *stack_pointer;
    int state;
    const uint32_t *word; // the thread waits until this word, under the mask, has another value
    uint32_t mask, value;
};

/// A tensor map as cuTensorMapEncodeTiled leaves it in the 128 bytes of a CUtensorMap, innermost dimension first.
struct FakeTensorMap {
    char *address;
    uint64_t sizes[5], strides[5]; // elements; bytes
    uint16_t box[5];
    uint8_t rank, element, swizzle, fills_nan;
};

#pragma GCC visibility push(default)
extern "C" {
/// The thread that runs.
extern __thread FakeThread *fake_self;
/// Waits for all threads of the block.
void fake_sync_block(void);
/// Waits for the threads of the warp and returns the lanes that arrived.
unsigned fake_sync_warp(unsigned mask);
/// Waits for the threads of the warp and returns the values of its 32 lanes; only those of the lanes in `lanes` are set.
const uint64_t *fake_exchange(uint64_t value, unsigned mask, unsigned *lanes);
/// Waits until `*word & mask` is not `value`.
void fake_wait(const uint32_t *word, uint32_t mask, uint32_t value);
/// The lanes of the warp that have not returned from the kernel.
unsigned fake_active(void);
/// Executes an instruction of inline PTX. The process ends for an instruction that is not imitated.
struct FakeOperand { void *at; int size; };
void fake_ptx(const char *text, FakeOperand *outs, int num_outs, FakeOperand *ins, int num_ins);
}
#pragma GCC visibility pop
