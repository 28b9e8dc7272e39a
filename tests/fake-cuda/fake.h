// Declarations that cuda.cpp, run.cpp and ptx.cpp share.
#pragma once
#include <cstddef>
#include <string>

/// A generated kernel, compiled for the CPU.
struct FakeKernel {
    void (*call)(void **arguments) = nullptr; // runs one thread
    bool meets = false;                       // whether its threads wait for each other
    int parameters = 0;
    const int *sizes = nullptr;
};

void fake_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/// Compiles the source `hash` below `dir`, or loads the library that an earlier process compiled. Logs and returns false if g++
/// refuses it.
bool fake_compile(const std::string &dir, const std::string &hash, const std::string &name, FakeKernel &kernel);

/// Whether an instruction of inline PTX is imitated.
bool fake_knows(const std::string &ptx);

/// Runs every block of a launch.
void fake_run(const FakeKernel &kernel, const std::string &name, const std::string &hash, const unsigned grid[3], const unsigned block[3],
    unsigned shared, void **arguments);
