// The instructions of inline PTX that are imitated. A kernel with another one is not compiled for the CPU (`fake_knows`), and its
// launch is refused, so that CubeCL's autotune takes another kernel.
#include "fake.h"
#include "thread.h"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

static bool starts(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static const char *KNOWN[] = {"mma.sync.aligned.m16n8k16.row.col.f32.f16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16", "mma.sync.aligned.m16n8k8.row.col.f32.tf32",
    "ldmatrix.sync.aligned.m8n8", "stmatrix.sync.aligned.m8n8",
    "max.NaN.f32", "min.NaN.f32", "atom.relaxed.add.f32", "atom.relaxed.add.u32", "atom.relaxed.add.u64", "atom.relaxed.add.f64",
    "cp.async.cg.shared::cta.global [%0], [%1], 16, %2", "cp.async.mbarrier.arrive.shared::cta.b64"};

/// Chooses a lane of a warp. Its text begins with the declaration of a register.
static bool elects(const char *text) { return strstr(text, "elect.sync _|"); }

bool fake_knows(const std::string &ptx) {
    if (elects(ptx.c_str())) return true;
    for (auto known : KNOWN)
        if (starts(ptx.c_str(), known)) return true;
    return false;
}

template <typename T> static void add(FakeOperand *outs, FakeOperand *ins) {
    T *at, value;
    memcpy(&at, ins[0].at, sizeof at);
    memcpy(&value, ins[1].at, sizeof value);
    T old = *at;
    *at = old + value;
    memcpy(outs[0].at, &old, sizeof old);
}

static float widen(uint16_t bits, bool is_bfloat) {
    if (is_bfloat) {
        uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, 4);
        return value;
    }
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
}

/// The registers of a lane.
struct Registers { uint32_t a[4], b[2]; };

/// d = a b + c, with the elements of the matrices in the registers that the PTX ISA's figures of mma.m16n8k8 and m16n8k16 show.
static void mma(const char *text, FakeOperand *outs, FakeOperand *ins) {
    Registers own;
    for (int i = 0; i < 4; i++) memcpy(&own.a[i], ins[i].at, 4);
    for (int i = 0; i < 2; i++) memcpy(&own.b[i], ins[4 + i].at, 4);
    unsigned lanes;
    const uint64_t *of = fake_exchange((uint64_t)&own, ~0u, &lanes);
    auto registers = [&](int lane) { return (const Registers *)of[lane]; };
    bool is_bfloat = strstr(text, ".bf16"), is_tf32 = strstr(text, ".tf32");
    int depth = is_tf32 ? 8 : 16;
    auto a = [&](int row, int k) {
        if (is_tf32) {
            float value;
            memcpy(&value, &registers(row % 8 * 4 + k % 4)->a[row / 8 + k / 4 * 2], 4);
            return value;
        }
        uint32_t pair = registers(row % 8 * 4 + k % 8 / 2)->a[row / 8 + k / 8 * 2];
        return widen(k % 2 ? pair >> 16 : pair & 0xFFFF, is_bfloat);
    };
    auto b = [&](int k, int column) {
        if (is_tf32) {
            float value;
            memcpy(&value, &registers(column * 4 + k % 4)->b[k / 4], 4);
            return value;
        }
        uint32_t pair = registers(column * 4 + k % 8 / 2)->b[k / 8];
        return widen(k % 2 ? pair >> 16 : pair & 0xFFFF, is_bfloat);
    };
    int lane = fake_self->lane;
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = *(float *)ins[6 + i].at;
        for (int k = 0; k < depth; k++) sum += a(row, k) * b(k, column);
        *(float *)outs[i].at = sum;
    }
    fake_sync_warp(~0u); // the other lanes have read this one's registers
}

/// Up to four matrices of 8 x 8 numbers of 16 bits between shared memory and the registers of a warp.
static void move_matrices(const char *text, FakeOperand *registers, int count, uint32_t address, bool stores) {
    unsigned lanes;
    const uint64_t *rows = fake_exchange((uint64_t)(fake_self->shared + address), ~0u, &lanes);
    bool transposed = strstr(text, ".trans");
    int lane = fake_self->lane;
    for (int j = 0; j < count; j++)
        for (int half = 0; half < 2; half++) {
            int row = lane / 4, column = lane % 4 * 2 + half;
            if (transposed) std::swap(row, column);
            uint16_t *at = (uint16_t *)rows[j * 8 + row] + column, *to = (uint16_t *)registers[j].at + half;
            if (stores) *at = *to; else *to = *at;
        }
    fake_sync_warp(~0u);
}

extern "C" void fake_ptx(const char *text, FakeOperand *outs, int num_outs, FakeOperand *ins, int num_ins) {
    auto f = [&](int i) { return *(float *)ins[i].at; };
    if (starts(text, "max.NaN.f32")) { *(float *)outs[0].at = std::isnan(f(0)) || std::isnan(f(1)) ? NAN : fmaxf(f(0), f(1)); return; }
    if (starts(text, "min.NaN.f32")) { *(float *)outs[0].at = std::isnan(f(0)) || std::isnan(f(1)) ? NAN : fminf(f(0), f(1)); return; }
    if (starts(text, "atom.relaxed.add.f32")) return add<float>(outs, ins);
    if (starts(text, "atom.relaxed.add.u32")) return add<unsigned>(outs, ins);
    if (starts(text, "atom.relaxed.add.u64")) return add<unsigned long long>(outs, ins);
    if (starts(text, "atom.relaxed.add.f64")) return add<double>(outs, ins);
    if (elects(text)) { *(uint32_t *)outs[0].at = fake_self->lane == (unsigned)__builtin_ctz(fake_active()); return; }
    // Made at once, so that the arrival which follows has nothing to wait for; the barrier's own count does not change by it.
    if (starts(text, "cp.async.cg")) {
        char *to = fake_self->shared + *(uint32_t *)ins[0].at;
        unsigned size = *(uint32_t *)ins[2].at;
        memcpy(to, *(char **)ins[1].at, size);
        memset(to + size, 0, 16 - size);
        return;
    }
    if (starts(text, "cp.async.mbarrier.arrive")) return;
    if (starts(text, "mma.sync")) return mma(text, outs, ins);
    if (starts(text, "ldmatrix")) return move_matrices(text, outs, num_outs, *(uint32_t *)ins[0].at, false);
    // The address comes first in the text; the operands are given in the order value, address or the other way round.
    if (starts(text, "stmatrix")) {
        bool address_last = strstr(text, "[%0]") == nullptr;
        return move_matrices(text, address_last ? ins : ins + 1, num_ins - 1, *(uint32_t *)ins[address_last ? num_ins - 1 : 0].at, true);
    }
    fprintf(stderr, "fake-cuda: inline PTX that is not imitated: %s\n", text);
    abort();
}
