// A libnvrtc.so in front of NVIDIA's, which FAKE_CUDA_NVRTC names: it stores every source in FAKE_CUDA_DIR, passes it on, and appends
// the hash of the source to the PTX, by which cuda.cpp finds the source again. Without FAKE_CUDA_NVRTC nothing is compiled.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

static std::string env(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}
static void note(const std::string &text) {
    std::string log = env("FAKE_CUDA_LOG", "");
    if (log.empty()) return;
    int file = open(log.c_str(), O_WRONLY | O_APPEND | O_CREAT, 0644);
    std::string line = "[" + std::to_string(getpid()) + "] " + text + "\n";
    if (file >= 0) {
        if (write(file, line.data(), line.size()) < 0) {}
        close(file);
    }
}
static void *real() {
    static void *library = [] {
        std::string path = env("FAKE_CUDA_NVRTC", "");
        void *opened = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!path.empty() && !opened) { fprintf(stderr, "fake-cuda: %s\n", dlerror()); abort(); }
        return opened;
    }();
    return library;
}
template <typename F> static F function(const char *name) { return (F)dlsym(real(), name); }

struct Program { std::string source, hash, log, ptx; void *real = nullptr; };

static std::string hash_of(const std::string &text) { // FNV-1a
    unsigned long long hash = 14695981039346656037ull;
    for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx", hash);
    return digits;
}

API int nvrtcVersion(int *major, int *minor) {
    if (real()) return function<int (*)(int *, int *)>("nvrtcVersion")(major, minor);
    *major = 13, *minor = 0;
    return 0;
}
/// Without NVIDIA's compiler every capability that CUDA 12 and 13 know is one.
static const int capabilities[] = {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 120};
API int nvrtcGetNumSupportedArchs(int *count) {
    if (real()) return function<int (*)(int *)>("nvrtcGetNumSupportedArchs")(count);
    *count = sizeof capabilities / sizeof *capabilities;
    return 0;
}
API int nvrtcGetSupportedArchs(int *list) {
    if (real()) return function<int (*)(int *)>("nvrtcGetSupportedArchs")(list);
    memcpy(list, capabilities, sizeof capabilities);
    return 0;
}
API const char *nvrtcGetErrorString(int) { return "an error of the fake nvrtc"; }

API int nvrtcCreateProgram(Program **program, const char *source, const char *name, int headers, const char *const *texts, const char *const *names) {
    Program *made = new Program{source};
    made->hash = hash_of(made->source);
    std::string dir = env("FAKE_CUDA_DIR", "fake-cuda-out");
    mkdir(dir.c_str(), 0755), mkdir((dir + "/src").c_str(), 0755);
    std::string file = dir + "/src/" + made->hash + ".cu";
    struct stat there;
    if (stat(file.c_str(), &there) != 0) {
        std::string temporary = file + "." + std::to_string(getpid());
        std::ofstream(temporary) << made->source;
        rename(temporary.c_str(), file.c_str());
    }
    *program = made;
    if (!real()) return 0;
    return function<int (*)(void **, const char *, const char *, int, const char *const *, const char *const *)>("nvrtcCreateProgram")(&made->real, source, name, headers, texts, names);
}
API int nvrtcDestroyProgram(Program **program) {
    if ((*program)->real) function<int (*)(void **)>("nvrtcDestroyProgram")(&(*program)->real);
    delete *program;
    *program = nullptr;
    return 0;
}
API int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    std::string all, mark = "\n// fake-cuda source " + program->hash + "\n";
    for (int i = 0; i < count; i++) all += std::string(" ") + options[i];
    static bool told = false;
    if (!told) told = true, note("NVRTC options" + all);
    size_t entry = program->source.find("__launch_bounds__(");
    std::string name = "kernel";
    if (entry != std::string::npos) {
        size_t at = program->source.find(')', entry), end = program->source.find('(', at);
        // The text is `__launch_bounds__(256) [__cluster_dims__(..)] name(`.
        if (program->source.find("__cluster_dims__", at) < end) at = program->source.find(')', end), end = program->source.find('(', at);
        name = program->source.substr(at + 1, end - at - 1);
        while (!name.empty() && name[0] == ' ') name.erase(0, 1);
    }
    if (!real()) {
        program->ptx = "// no compiler" + mark;
        return 0;
    }
    auto start = std::chrono::steady_clock::now();
    int result = function<int (*)(void *, int, const char *const *)>("nvrtcCompileProgram")(program->real, count, options);
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    size_t size = 0;
    function<int (*)(void *, size_t *)>("nvrtcGetProgramLogSize")(program->real, &size);
    program->log.resize(size ? size : 1);
    if (size) function<int (*)(void *, char *)>("nvrtcGetProgramLog")(program->real, &program->log[0]);
    char line[256];
    snprintf(line, sizeof line, "NVRTC %s %s %.3f s %zu bytes of source%s", name.substr(0, 100).c_str(), program->hash.c_str(), seconds, program->source.size(), result ? " FAILED" : "");
    note(line);
    if (result) {
        note("NVRTC log: " + program->log.substr(0, 3000));
        return result;
    }
    if (function<int (*)(void *, size_t *)>("nvrtcGetPTXSize")(program->real, &size)) return 1;
    program->ptx.resize(size);
    if (function<int (*)(void *, char *)>("nvrtcGetPTX")(program->real, &program->ptx[0])) return 1;
    while (!program->ptx.empty() && program->ptx.back() == 0) program->ptx.pop_back();
    program->ptx += mark;
    return 0;
}
API int nvrtcGetPTXSize(Program *program, size_t *size) { *size = program->ptx.size() + 1; return 0; }
API int nvrtcGetPTX(Program *program, char *ptx) { memcpy(ptx, program->ptx.c_str(), program->ptx.size() + 1); return 0; }
API int nvrtcGetProgramLogSize(Program *program, size_t *size) { *size = program->log.size() + 1; return 0; }
API int nvrtcGetProgramLog(Program *program, char *log) { memcpy(log, program->log.c_str(), program->log.size() + 1); return 0; }
API int nvrtcGetCUBINSize(Program *, size_t *size) { *size = 0; return 0; }
API int nvrtcAddNameExpression(Program *, const char *) { return 0; }
