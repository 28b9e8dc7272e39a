// A libcuda.so.1 without a GPU: the part of the CUDA driver API that CubeCL 0.11 calls, on the host's memory.
//
// Allocations, copies, events, streams and graphs behave as the driver's do, except that work is done in order and at once.
// With FAKE_CUDA_RUN=1 the CUDA C++ that CubeCL generated is compiled for the CPU by g++ and run thread by thread (run.cpp,
// device/device.h); otherwise kernels do nothing. Calls that the real driver refuses are refused here where its conditions are
// documented: launches that are too large, work that may not be captured, calls without a current context, and allocations
// beyond the device's memory.
//
// README.md beside this file lists the environment variables.
#include "fake.h"
#include "thread.h"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_UNMATCHED = 903,
    STREAM_CAPTURE_UNJOINED = 904,
    STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    UNKNOWN = 999,
};

// ------------------------------------------------------------------------------------------------ settings

static std::string env(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static long long bytes_of(const std::string &text) {
    char *end;
    double number = strtod(text.c_str(), &end);
    switch (*end) {
    case 'k': case 'K': number *= 1 << 10; break;
    case 'm': case 'M': number *= 1 << 20; break;
    case 'g': case 'G': number *= 1 << 30; break;
    }
    return (long long)number;
}

struct Settings {
    int cc = atoi(env("FAKE_CUDA_CC", "90").c_str());
    int devices = atoi(env("FAKE_CUDA_DEVICES", "1").c_str());
    int driver = atoi(env("FAKE_CUDA_DRIVER", "13000").c_str());
    int multiprocessors = atoi(env("FAKE_CUDA_SMS", "132").c_str());
    std::string name = env("FAKE_CUDA_NAME", "NVIDIA H200 (fake)");
    long long memory = bytes_of(env("FAKE_CUDA_MEMORY", "141G"));
    std::string dir = env("FAKE_CUDA_DIR", "fake-cuda-out");
    bool run = env("FAKE_CUDA_RUN", "0") == "1";
    bool poison = env("FAKE_CUDA_POISON", "1") == "1"; // fresh memory is NaN
    bool strict = env("FAKE_CUDA_STRICT", "1") == "1"; // a launch of a kernel that cannot run here is refused
    bool trace = env("FAKE_CUDA_TRACE", "0") == "1";
    bool graphs = env("FAKE_CUDA_GRAPHS", "1") == "1";
    std::string ptxas = env("FAKE_CUDA_PTXAS", "");
    std::string log = env("FAKE_CUDA_LOG", "");
};

static Settings &settings() {
    static Settings *it = new Settings();
    return *it;
}

// ------------------------------------------------------------------------------------------------ log

static std::recursive_mutex &lock() {
    static std::recursive_mutex *it = new std::recursive_mutex();
    return *it;
}
#define LOCK std::lock_guard<std::recursive_mutex> guard_(lock())

void fake_log(const char *format, ...) {
    static thread_local char line[1 << 16]; // a launch on many tensors has thousands of numbers
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (n > (int)sizeof line - 2) n = sizeof line - 2;
    line[n++] = '\n';
    if (settings().log.empty()) {
        if (write(2, "fake-cuda: ", 11) < 0 || write(2, line, n) < 0) return;
    } else {
        int file = open(settings().log.c_str(), O_WRONLY | O_APPEND | O_CREAT, 0644);
        char head[32];
        int m = snprintf(head, sizeof head, "[%d] ", getpid());
        if (file >= 0) {
            if (write(file, head, m) < 0 || write(file, line, n) < 0) {}
            close(file);
        }
    }
}

#define TRACE(...) do { if (settings().trace) fake_log(__VA_ARGS__); } while (0)

struct Counts {
    std::map<std::string, long long> calls;
    std::map<std::string, std::pair<long long, double>> kernels; // launches, seconds
    std::set<std::string> complaints;
    long long allocated = 0, peak = 0, graph_kernels = 0;
};
static Counts &counts() {
    static Counts *it = new Counts();
    return *it;
}

/// The error that FAKE_CUDA_FAIL injects into the `nth` call of `name`; 0 for none. "cuMemcpyDtoHAsync:3:700,cuGraphInstantiate:1:1"
/// lets the third of those copies fail with 700. Faults of the device are sticky, as the driver's are: every later call of any
/// name returns them too.
static int injected(const std::string &name, long long nth) {
    static int sticky = 0;
    static std::string asked = env("FAKE_CUDA_FAIL", "");
    if (sticky) return sticky;
    if (asked.empty()) return 0;
    std::stringstream parts(asked);
    std::string part;
    while (std::getline(parts, part, ',')) {
        size_t a = part.find(':'), b = part.rfind(':');
        if (part.substr(0, a) != name || atoll(part.c_str() + a + 1) != nth) continue;
        int code = atoi(part.c_str() + b + 1);
        fake_log("INJECTED %d into %s number %lld", code, name.c_str(), nth);
        if (code >= 700 && code < 720 && code != 701) sticky = code;
        return code;
    }
    return 0;
}
#define CALL(name) do { long long nth_ = ++counts().calls[name]; if (int code_ = injected(name, nth_)) return (Result)code_; } while (0)

/// Logs a use that deserves attention although the call succeeds, once for each text.
static void complain(const std::string &text) {
    if (counts().complaints.insert(text).second) fake_log("NOTE %s", text.c_str());
}

static Result refuse(Result result, const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fake_log("REFUSED with %d: %s", result, line);
    static bool traces = env("FAKE_CUDA_BACKTRACE", "0") == "1";
    if (traces) {
        void *frames[48];
        int n = backtrace(frames, 48);
        char **names = backtrace_symbols(frames, n);
        for (int i = 1; i < n; i++) fake_log("  at %s", names[i]);
        free(names);
    }
    return result;
}

/// Seconds that every kernel takes by the clock of events, from FAKE_CUDA_KERNEL_MS; 0 if events are to tell the real time.
static double virtual_time = 0;
static double kernel_seconds() {
    static double seconds = atof(env("FAKE_CUDA_KERNEL_MS", "0").c_str()) / 1e3;
    return seconds;
}
/// With FAKE_CUDA_TUNE=first the first kernel that runs satisfies autotune: kernels take a microsecond by the clock of events, and those
/// by which CubeCL measures the device's peak, against the real clock, take 20 ms whatever they are asked to do, and empty ones no time. The latter have no
/// result and are made for a whole GPU, so they are not run.
static const bool takes_first = env("FAKE_CUDA_TUNE", "") == "first";
static bool is_measurement(const std::string &kernel) {
    return kernel.find("_throughput_") != std::string::npos || kernel.rfind("launch_overhead_", 0) == 0;
}
static bool clock_is_virtual() { return takes_first || kernel_seconds() > 0; }
static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ------------------------------------------------------------------------------------------------ objects

struct Context { int device; };
static Context contexts[16];
static thread_local Context *current = nullptr;
static bool initialised = false;

struct Module;
struct Function {
    Module *module;
    std::string name, hash;
    FakeKernel kernel;  // filled at the first launch that runs it
    int state = 0;      // 0 not compiled, 1 compiled, -1 failed
    int max_dynamic = 48 << 10;
    int max_threads = 1024, registers = 0, spills = 0, stack = 0, static_shared = 0;
    std::vector<int> parameters; // sizes of the parameters, from the PTX
};
struct Module {
    std::string ptx, hash;
    std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Node {
    int type; // CUgraphNodeType
    // kernel
    Function *function = nullptr;
    unsigned grid[3] = {}, block[3] = {}, shared = 0;
    std::vector<std::vector<char>> arguments;
    // copy
    struct { char *to; const char *from; size_t to_pitch, from_pitch, width, height; } copy = {};
    // memset
    unsigned char value = 0;
};
struct Graph { std::vector<std::unique_ptr<Node>> nodes; };
struct Exec { std::vector<std::unique_ptr<Node>> nodes; bool has_memory_nodes = false; long long launches = 0; };

struct Stream {
    Context *context;
    bool capturing = false, invalidated = false;
    int mode = 0;
    pthread_t by = 0;
    Graph *graph = nullptr;
};
struct Event {
    double at = 0;
    bool recorded = false, captured = false;
    Stream *stream = nullptr;
};

static std::set<Stream *> streams;
static std::set<Event *> events;
static int capturing = 0; // streams that record in another than the relaxed mode

static Result alive() {
    if (!initialised) return refuse(NOT_INITIALIZED, "cuInit has not been called");
    return SUCCESS;
}
static Result in_context(const char *call) {
    if (Result r = alive()) return r;
    if (!current) return refuse(INVALID_CONTEXT, "%s on a thread without a current context", call);
    return SUCCESS;
}
#define CONTEXT(call) do { if (Result r_ = in_context(call)) return r_; } while (0)

/// The mode that a thread has of its own: 0 global, 1 thread-local, 2 relaxed.
static thread_local int thread_mode = 0;

/// Refuses a call that is forbidden while a stream records in global mode. As in the driver, the attempt invalidates the
/// recording. A thread in the relaxed mode may make those calls that do not wait for a recording.
static Result unsafe_call(const char *call, bool waits = false) {
    if (!capturing || (thread_mode == 2 && !waits)) return SUCCESS;
    for (Stream *stream : streams)
        if (stream->capturing) stream->invalidated = true;
    return refuse(STREAM_CAPTURE_UNSUPPORTED, "%s while a stream records in global mode", call);
}
#define NOT_WHILE_CAPTURING(call) do { if (Result r_ = unsafe_call(call)) return r_; } while (0)

// ------------------------------------------------------------------------------------------------ memory

struct Block { size_t size; bool pinned, async; };
static std::map<uintptr_t, Block> blocks;

static Result allocate(uintptr_t *pointer, size_t size, bool pinned, bool async) {
    if (!pinned && counts().allocated + (long long)size > settings().memory)
        return refuse(OUT_OF_MEMORY, "allocation of %zu bytes with %lld of %lld in use", size, counts().allocated, settings().memory);
    // A page without access lies on either side, so that a kernel that leaves its buffer faults.
    size_t page = 4096, room = (size + page - 1) / page * page;
    char *at = (char *)mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return refuse(OUT_OF_MEMORY, "the host refuses %zu bytes", size);
    // The allocation begins at a page, which gives device pointers the alignment of the driver's (256). Its end therefore does not
    // always touch the guard, and an overrun within the last page goes unnoticed.
    if (mprotect(at + page, room, PROT_READ | PROT_WRITE)) return refuse(OUT_OF_MEMORY, "the host refuses %zu bytes", size);
    if (!pinned && settings().poison && room <= (256u << 20)) memset(at + page, 0xFF, room);
    *pointer = (uintptr_t)(at + page);
    blocks[*pointer] = {size, pinned, async};
    if (!pinned) {
        counts().allocated += size;
        counts().peak = std::max(counts().peak, counts().allocated);
    }
    TRACE("allocate %s %zu at %lx", pinned ? "pinned" : async ? "async" : "sync", size, (long)*pointer);
    return SUCCESS;
}

static Result release(uintptr_t pointer, bool pinned) {
    auto it = blocks.find(pointer);
    if (it == blocks.end() || it->second.pinned != pinned) return refuse(INVALID_VALUE, "free of %lx, which is no allocation", (long)pointer);
    size_t page = 4096, room = (it->second.size + page - 1) / page * page;
    munmap((char *)pointer - page, room + 2 * page);
    if (!pinned) counts().allocated -= it->second.size;
    TRACE("free %lx", (long)pointer);
    blocks.erase(it);
    return SUCCESS;
}

/// The allocation that `[pointer, pointer + size)` lies in.
static const Block *holder(uintptr_t pointer, size_t size) {
    auto it = blocks.upper_bound(pointer);
    if (it == blocks.begin()) return nullptr;
    --it;
    return pointer + size <= it->first + it->second.size ? &it->second : nullptr;
}

// ------------------------------------------------------------------------------------------------ work

static void copy_rows(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height) {
    if (height == 1 || (to_pitch == width && from_pitch == width)) memmove(to, from, width * height);
    else for (size_t y = 0; y < height; y++) memmove(to + y * to_pitch, from + y * from_pitch, width);
}

static Result execute(Node &node) {
    switch (node.type) {
    case 1:
        copy_rows(node.copy.to, node.copy.to_pitch, node.copy.from, node.copy.from_pitch, node.copy.width, node.copy.height);
        return SUCCESS;
    case 2:
        memset(node.copy.to, node.value, node.copy.width);
        return SUCCESS;
    case 0: {
        Function &f = *node.function;
        auto &count = counts().kernels[f.name + " " + f.hash];
        count.first++;
        virtual_time += takes_first ? 1e-6 : kernel_seconds();
        if (takes_first && is_measurement(f.name)) {
            if (f.name.find("_throughput_") != std::string::npos) usleep(20000);
            return SUCCESS;
        }
        if (!settings().run) return SUCCESS;
        if (f.state == 0) f.state = fake_compile(settings().dir, f.hash, f.name, f.kernel) ? 1 : -1;
        if (f.state < 0) {
            complain("kernel " + f.name + " " + f.hash + " could not be compiled for the CPU: its launches do nothing");
            return SUCCESS;
        }
        if (f.kernel.parameters != (int)node.arguments.size() && !f.parameters.empty())
            complain("kernel " + f.name + " takes " + std::to_string(f.kernel.parameters) + " parameters and was given " + std::to_string(node.arguments.size()));
        std::vector<void *> arguments;
        for (auto &argument : node.arguments) arguments.push_back(argument.data());
        double start = now();
        fake_run(f.kernel, f.name, f.hash, node.grid, node.block, node.shared, arguments.data());
        count.second += now() - start;
        return SUCCESS;
    }
    }
    return SUCCESS;
}

static Result submit(Stream *stream, std::unique_ptr<Node> node) {
    if (!stream || !streams.count(stream)) {
        if (stream == nullptr) { complain("work on the legacy default stream"); return execute(*node); }
        return refuse(INVALID_HANDLE, "work on a stream that is none");
    }
    if (!stream->capturing) return execute(*node);
    if (stream->invalidated) return STREAM_CAPTURE_INVALIDATED;
    stream->graph->nodes.push_back(std::move(node));
    return SUCCESS;
}

static Result submit_copy(Stream *stream, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, const char *what) {
    if (!width || !height) return SUCCESS;
    auto node = std::make_unique<Node>();
    node->type = 1;
    node->copy = {(char *)to, (const char *)from, to_pitch, from_pitch, width, height};
    if (stream && streams.count(stream) && stream->capturing) complain(std::string(what) + " is recorded in a graph");
    return submit(stream, std::move(node));
}

// ------------------------------------------------------------------------------------------------ modules

static int run_process(const std::vector<std::string> &words, std::string &output) {
    std::string command;
    for (auto &word : words) command += "'" + word + "' ";
    FILE *pipe = popen((command + "2>&1").c_str(), "r");
    if (!pipe) return -1;
    char buffer[4096];
    while (size_t n = fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
    return pclose(pipe);
}

/// Number before `after`, as in "26 registers".
static int number_before(const std::string &text, const std::string &after) {
    size_t at = text.find(after);
    if (at == std::string::npos) return 0;
    size_t start = at;
    while (start > 0 && isdigit(text[start - 1])) start--;
    return atoi(text.c_str() + start);
}

/// Parameters of an entry as the PTX declares them: `.param .u64 .ptr .. name` or `.param .align 8 .b8 name[24]`.
static std::vector<int> parameters_of(const std::string &ptx, const std::string &name) {
    std::vector<int> sizes;
    size_t at = ptx.find(".entry " + name + "(");
    if (at == std::string::npos) return sizes;
    size_t end = ptx.find(')', at);
    for (size_t p = ptx.find(".param", at); p != std::string::npos && p < end; p = ptx.find(".param", p + 1)) {
        std::string line = ptx.substr(p, ptx.find_first_of(",\n)", p) - p);
        if (size_t bracket = line.find('['); bracket != std::string::npos) sizes.push_back(atoi(line.c_str() + bracket + 1));
        else if (line.find("64") != std::string::npos && line.find("64") < 12) sizes.push_back(8);
        else if (line.find("32") != std::string::npos) sizes.push_back(4);
        else if (line.find("16") != std::string::npos) sizes.push_back(2);
        else sizes.push_back(8);
    }
    return sizes;
}

/// Parameters of a kernel as its source declares them, where NVIDIA's compiler made no PTX of it: pointers, and structs by value.
static std::vector<int> parameters_of_source(const std::string &hash, const std::string &name) {
    std::ifstream in(settings().dir + "/src/" + hash + ".cu");
    std::string source((std::istreambuf_iterator<char>(in)), {});
    std::vector<int> sizes;
    size_t at = source.find(name + "("), end = source.find("{", at);
    if (at == std::string::npos) return sizes;
    std::stringstream parts(source.substr(at + name.size() + 1, source.rfind(')', end) - at - name.size() - 1));
    for (std::string part; std::getline(parts, part, ',');) {
        if (part.find('*') != std::string::npos) sizes.push_back(8);
        else if (part.find("CUtensorMap") != std::string::npos) sizes.push_back(128);
        else { // struct info_st { uint32_t name[count]; ... }, whose fields the host fills without gaps
            size_t body = source.find("struct info_st {"), close = source.find("};", body);
            int size = 0, widest = 1;
            std::stringstream fields(body == std::string::npos ? "" : source.substr(body + 16, close - body - 16));
            for (std::string field; std::getline(fields, field, ';');) {
                size_t bracket = field.find('[');
                if (bracket == std::string::npos) continue;
                int width = field.find("64_t") != std::string::npos || field.find("double") != std::string::npos ? 8
                    : field.find("16") != std::string::npos || field.find("half") != std::string::npos ? 2
                    : field.find("int8_t") != std::string::npos || field.find("bool") != std::string::npos ? 1 : 4;
                size = (size + width - 1) / width * width + width * atoi(field.c_str() + bracket + 1);
                widest = std::max(widest, width);
            }
            sizes.push_back((size + widest - 1) / widest * widest);
        }
    }
    return sizes;
}

// ------------------------------------------------------------------------------------------------ summary

static void summary() {
    LOCK;
    if (settings().log.empty() || (!initialised && counts().calls.empty())) return;
    std::ostringstream out;
    out << "SUMMARY peak device memory " << counts().peak / double(1 << 20) << " MiB, still allocated " << counts().allocated / double(1 << 20)
        << " MiB, kernels in graphs replayed " << counts().graph_kernels;
    fake_log("%s", out.str().c_str());
    for (auto &[name, n] : counts().calls) fake_log("CALLS %8lld %s", n, name.c_str());
    long long launches = 0;
    for (auto &[name, n] : counts().kernels) launches += n.first;
    fake_log("KERNELS %zu kinds, %lld launches", counts().kernels.size(), launches);
    if (env("FAKE_CUDA_KERNELS", "0") == "1")
        for (auto &[name, n] : counts().kernels) fake_log("KERNEL %6lld launches %9.3f s %s", n.first, n.second, name.c_str());
}

struct AtExit { AtExit() { atexit(summary); } } static at_exit;

// ------------------------------------------------------------------------------------------------ the API

extern "C" {

typedef int CUresult;
typedef int CUdevice;
typedef uintptr_t CUdeviceptr;

#define API __attribute__((visibility("default")))

API CUresult cuInit(unsigned) {
    LOCK; CALL("cuInit");
    if (settings().devices == 0) return NO_DEVICE;
    initialised = true;
    mkdir(settings().dir.c_str(), 0755);
    return SUCCESS;
}
API CUresult cuDriverGetVersion(int *version) { LOCK; CALL("cuDriverGetVersion"); *version = settings().driver; return SUCCESS; }
API CUresult cuDeviceGetCount(int *count) { LOCK; CALL("cuDeviceGetCount"); *count = settings().devices; return alive(); }
API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    LOCK; CALL("cuDeviceGet");
    if (Result r = alive()) return r;
    if (ordinal < 0 || ordinal >= settings().devices) return refuse(INVALID_DEVICE, "cuDeviceGet(%d) of %d", ordinal, settings().devices);
    *device = ordinal;
    return SUCCESS;
}
API CUresult cuDeviceGetName(char *name, int length, CUdevice) { LOCK; CALL("cuDeviceGetName"); snprintf(name, length, "%s", settings().name.c_str()); return alive(); }
API CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) { LOCK; CALL("cuDeviceGetPCIBusId"); snprintf(id, length, "0000:%02X:00.0", 0x10 + device); return alive(); }
API CUresult cuDeviceGetUuid_v2(char *uuid, CUdevice device) { LOCK; memset(uuid, 0x42, 16); uuid[15] = device; return alive(); }
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice) { LOCK; CALL("cuDeviceTotalMem_v2"); *bytes = settings().memory; return alive(); }
API CUresult cuMemGetInfo_v2(size_t *free, size_t *total) { LOCK; CALL("cuMemGetInfo_v2"); *total = settings().memory; *free = *total - counts().allocated; return alive(); }

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice) {
    LOCK; CALL("cuDeviceGetAttribute");
    if (Result r = alive()) return r;
    int cc = settings().cc;
    int optin = cc >= 100 ? 227 << 10 : cc == 90 ? 227 << 10 : cc == 80 ? 163 << 10 : cc >= 86 ? 99 << 10 : cc == 75 ? 64 << 10 : cc >= 70 ? 96 << 10 : 48 << 10;
    switch (attribute) {
    case 1: *value = 1024; break;                    // MAX_THREADS_PER_BLOCK
    case 2: case 3: *value = 1024; break;            // MAX_BLOCK_DIM_X, Y
    case 4: *value = 64; break;                      // MAX_BLOCK_DIM_Z
    case 5: *value = 2147483647; break;              // MAX_GRID_DIM_X
    case 6: case 7: *value = 65535; break;           // MAX_GRID_DIM_Y, Z
    case 8: *value = 48 << 10; break;                // MAX_SHARED_MEMORY_PER_BLOCK
    case 10: *value = 32; break;                     // WARP_SIZE
    case 12: *value = 65536; break;                  // MAX_REGISTERS_PER_BLOCK
    case 16: *value = settings().multiprocessors; break;
    case 38: *value = 50 << 20; break;               // L2_CACHE_SIZE
    case 39: *value = 2048; break;                   // MAX_THREADS_PER_MULTIPROCESSOR
    case 75: *value = cc / 10; break;
    case 76: *value = cc % 10; break;
    case 97: *value = optin; break;                  // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    case 115: *value = 1; break;                     // MEMORY_POOLS_SUPPORTED
    default: complain("attribute " + std::to_string(attribute) + " asked for: 0"); *value = 0;
    }
    return SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(Context **context, CUdevice device) { LOCK; CALL("cuDevicePrimaryCtxRetain"); contexts[device].device = device; *context = &contexts[device]; return alive(); }
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { LOCK; CALL("cuDevicePrimaryCtxRelease"); return SUCCESS; }
API CUresult cuCtxSetCurrent(Context *context) { LOCK; CALL("cuCtxSetCurrent"); current = context; return alive(); }
API CUresult cuCtxGetCurrent(Context **context) { LOCK; CALL("cuCtxGetCurrent"); *context = current; return alive(); }
API CUresult cuCtxSynchronize(void) { LOCK; CALL("cuCtxSynchronize"); CONTEXT("cuCtxSynchronize"); return (CUresult)unsafe_call("cuCtxSynchronize", true); }
API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { LOCK; CALL("cuCtxGetStreamPriorityRange"); *least = 0; *greatest = -5; return SUCCESS; }

// NVIDIA's compiler asks for undocumented tables and works without them.
API CUresult cuGetExportTable(const void **table, const void *) { *table = nullptr; return NOT_FOUND; }

// streams and events

static CUresult create_stream(Stream **stream) {
    CONTEXT("cuStreamCreate");
    *stream = new Stream{current};
    streams.insert(*stream);
    TRACE("stream %p", (void *)*stream);
    return SUCCESS;
}
API CUresult cuStreamCreate(Stream **stream, unsigned) { LOCK; CALL("cuStreamCreate"); return create_stream(stream); }
API CUresult cuStreamCreateWithPriority(Stream **stream, unsigned, int) { LOCK; CALL("cuStreamCreateWithPriority"); return create_stream(stream); }
API CUresult cuStreamDestroy_v2(Stream *stream) { LOCK; CALL("cuStreamDestroy"); if (!streams.erase(stream)) return refuse(INVALID_HANDLE, "cuStreamDestroy"); delete stream; return SUCCESS; }
API CUresult cuStreamSynchronize(Stream *stream) {
    LOCK; CALL("cuStreamSynchronize");
    if (stream && !streams.count(stream)) return refuse(INVALID_HANDLE, "cuStreamSynchronize of no stream");
    if (stream && stream->capturing) { stream->invalidated = true; return refuse(STREAM_CAPTURE_UNSUPPORTED, "cuStreamSynchronize of a stream that records"); }
    return SUCCESS;
}
API CUresult cuStreamQuery(Stream *stream) { LOCK; CALL("cuStreamQuery"); return stream && stream->capturing ? (CUresult)unsafe_call("cuStreamQuery", true) : SUCCESS; }
API CUresult cuStreamWaitEvent(Stream *stream, Event *event, unsigned) {
    LOCK; CALL("cuStreamWaitEvent");
    if (!streams.count(stream) || !events.count(event)) return refuse(INVALID_HANDLE, "cuStreamWaitEvent");
    if (stream->capturing && !event->captured) {
        stream->invalidated = true;
        return refuse(STREAM_CAPTURE_ISOLATION, "a stream that records waits for an event from outside its recording");
    }
    if (!stream->capturing && event->captured) complain("a stream joins the recording of another by an event: not imitated");
    return SUCCESS;
}
API CUresult cuStreamIsCapturing(Stream *stream, int *status) { LOCK; CALL("cuStreamIsCapturing"); *status = !stream->capturing ? 0 : stream->invalidated ? 2 : 1; return SUCCESS; }

API CUresult cuEventCreate(Event **event, unsigned) { LOCK; CALL("cuEventCreate"); CONTEXT("cuEventCreate"); *event = new Event(); events.insert(*event); return SUCCESS; }
API CUresult cuEventDestroy_v2(Event *event) { LOCK; CALL("cuEventDestroy"); if (!events.erase(event)) return refuse(INVALID_HANDLE, "cuEventDestroy"); delete event; return SUCCESS; }
API CUresult cuEventRecord(Event *event, Stream *stream) {
    LOCK; CALL("cuEventRecord");
    if (!events.count(event) || (stream && !streams.count(stream))) return refuse(INVALID_HANDLE, "cuEventRecord");
    event->at = clock_is_virtual() ? virtual_time : now(), event->recorded = true, event->stream = stream, event->captured = stream && stream->capturing;
    if (event->captured) complain("an event is recorded into a stream that records a graph");
    return SUCCESS;
}
API CUresult cuEventSynchronize(Event *event) {
    LOCK; CALL("cuEventSynchronize");
    if (!events.count(event)) return refuse(INVALID_HANDLE, "cuEventSynchronize");
    if (event->captured) {
        if (streams.count(event->stream)) event->stream->invalidated = true;
        return refuse(CAPTURED_EVENT, "cuEventSynchronize of an event that was recorded into a graph");
    }
    return SUCCESS;
}
API CUresult cuEventQuery(Event *event) {
    LOCK; CALL("cuEventQuery");
    if (!events.count(event)) return refuse(INVALID_HANDLE, "cuEventQuery");
    if (event->captured) return refuse(CAPTURED_EVENT, "cuEventQuery of a captured event");
    return SUCCESS;
}
static CUresult elapsed(float *ms, Event *start, Event *end) {
    if (!events.count(start) || !events.count(end)) return refuse(INVALID_HANDLE, "cuEventElapsedTime");
    if (!start->recorded || !end->recorded) return refuse(INVALID_HANDLE, "cuEventElapsedTime of events that were not recorded");
    if (start->captured || end->captured) return refuse(CAPTURED_EVENT, "cuEventElapsedTime of captured events");
    *ms = (end->at - start->at) * 1e3;
    return SUCCESS;
}
API CUresult cuEventElapsedTime(float *ms, Event *start, Event *end) { LOCK; CALL("cuEventElapsedTime"); return elapsed(ms, start, end); }
API CUresult cuEventElapsedTime_v2(float *ms, Event *start, Event *end) { LOCK; CALL("cuEventElapsedTime_v2"); return elapsed(ms, start, end); }

// memory

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    LOCK; CALL("cuMemAlloc"); CONTEXT("cuMemAlloc"); NOT_WHILE_CAPTURING("cuMemAlloc");
    return size ? (CUresult)allocate(pointer, size, false, false) : (CUresult)refuse(INVALID_VALUE, "cuMemAlloc of 0 bytes");
}
API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, Stream *stream) {
    LOCK; CALL("cuMemAllocAsync"); CONTEXT("cuMemAllocAsync");
    if (!size) return refuse(INVALID_VALUE, "cuMemAllocAsync of 0 bytes");
    if (stream && streams.count(stream) && stream->capturing) {
        auto node = std::make_unique<Node>();
        node->type = 10;
        stream->graph->nodes.push_back(std::move(node));
        complain("cuMemAllocAsync is recorded in a graph");
    }
    return allocate(pointer, size, false, true);
}
API CUresult cuMemFree_v2(CUdeviceptr pointer) { LOCK; CALL("cuMemFree"); CONTEXT("cuMemFree"); NOT_WHILE_CAPTURING("cuMemFree"); return release(pointer, false); }
API CUresult cuMemFreeAsync(CUdeviceptr pointer, Stream *stream) {
    LOCK; CALL("cuMemFreeAsync"); CONTEXT("cuMemFreeAsync");
    if (stream && streams.count(stream) && stream->capturing) {
        stream->invalidated = true;
        return refuse(STREAM_CAPTURE_UNSUPPORTED, "cuMemFreeAsync of memory from outside the recording");
    }
    return release(pointer, false);
}
API CUresult cuMemAllocHost_v2(void **pointer, size_t size) {
    LOCK; CALL("cuMemAllocHost"); CONTEXT("cuMemAllocHost"); NOT_WHILE_CAPTURING("cuMemAllocHost");
    return allocate((uintptr_t *)pointer, size, true, false);
}
API CUresult cuMemFreeHost(void *pointer) { LOCK; CALL("cuMemFreeHost"); NOT_WHILE_CAPTURING("cuMemFreeHost"); return release((uintptr_t)pointer, true); }

static CUresult checked_range(CUdeviceptr pointer, size_t size, const char *call) {
    const Block *block = holder(pointer, size);
    if (!block || block->pinned) return refuse(INVALID_VALUE, "%s: [%lx, +%zu) is not within one allocation", call, (long)pointer, size);
    return SUCCESS;
}
static void host_memory(Stream *stream, const void *pointer, size_t size, const char *call) {
    const Block *block = holder((uintptr_t)pointer, size);
    if (!(block && block->pinned) && stream && streams.count(stream) && stream->capturing)
        complain(std::string(call) + " with pageable host memory is recorded in a graph");
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, Stream *stream) {
    LOCK; CALL("cuMemcpyHtoDAsync"); CONTEXT("cuMemcpyHtoDAsync");
    if (CUresult r = checked_range(to, size, "cuMemcpyHtoDAsync")) return r;
    host_memory(stream, from, size, "cuMemcpyHtoDAsync");
    TRACE("htod %zu to %lx", size, (long)to);
    return submit_copy(stream, (void *)to, size, from, size, size, 1, "cuMemcpyHtoDAsync");
}
API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, Stream *stream) {
    LOCK; CALL("cuMemcpyDtoHAsync"); CONTEXT("cuMemcpyDtoHAsync");
    if (CUresult r = checked_range(from, size, "cuMemcpyDtoHAsync")) return r;
    TRACE("dtoh %zu from %lx", size, (long)from);
    if (!settings().run) { memset(to, 0, size); return SUCCESS; } // nothing was computed, and recycled memory may hold anything
    return submit_copy(stream, to, size, (void *)from, size, size, 1, "cuMemcpyDtoHAsync");
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, Stream *stream) {
    LOCK; CALL("cuMemcpyDtoDAsync"); CONTEXT("cuMemcpyDtoDAsync");
    if (CUresult r = checked_range(from, size, "cuMemcpyDtoDAsync")) return r;
    if (CUresult r = checked_range(to, size, "cuMemcpyDtoDAsync")) return r;
    return submit_copy(stream, (void *)to, size, (void *)from, size, size, 1, "cuMemcpyDtoDAsync");
}
API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, Stream *stream) {
    LOCK; CALL("cuMemsetD8Async"); CONTEXT("cuMemsetD8Async");
    if (CUresult r = checked_range(to, size, "cuMemsetD8Async")) return r;
    auto node = std::make_unique<Node>();
    node->type = 2, node->value = value, node->copy.to = (char *)to, node->copy.width = size;
    return submit(stream, std::move(node));
}

struct Memcpy2D { // CUDA_MEMCPY2D
    size_t from_x, from_y; unsigned from_type; const void *from_host; CUdeviceptr from_device; void *from_array; size_t from_pitch;
    size_t to_x, to_y; unsigned to_type; void *to_host; CUdeviceptr to_device; void *to_array; size_t to_pitch;
    size_t width, height;
};
API CUresult cuMemcpy2DAsync_v2(const Memcpy2D *copy, Stream *stream) {
    LOCK; CALL("cuMemcpy2DAsync"); CONTEXT("cuMemcpy2DAsync");
    const char *from = copy->from_type == 1 ? (const char *)copy->from_host : (const char *)copy->from_device;
    char *to = copy->to_type == 1 ? (char *)copy->to_host : (char *)copy->to_device;
    if (copy->width > copy->from_pitch || copy->width > copy->to_pitch) return refuse(INVALID_VALUE, "cuMemcpy2DAsync: a row of %zu bytes is wider than a pitch", copy->width);
    if (copy->from_pitch > 2147483647 || copy->to_pitch > 2147483647) return refuse(INVALID_VALUE, "cuMemcpy2DAsync: pitch");
    size_t from_size = (copy->height - 1) * copy->from_pitch + copy->width, to_size = (copy->height - 1) * copy->to_pitch + copy->width;
    if (copy->from_type == 2) if (CUresult r = checked_range((uintptr_t)from, from_size, "cuMemcpy2DAsync, source")) return r;
    if (copy->to_type == 2) if (CUresult r = checked_range((uintptr_t)to, to_size, "cuMemcpy2DAsync, target")) return r;
    complain("rows with a pitch are copied: tensors are not contiguous on this device");
    return submit_copy(stream, to + copy->to_y * copy->to_pitch + copy->to_x, copy->to_pitch, from + copy->from_y * copy->from_pitch + copy->from_x,
        copy->from_pitch, copy->width, copy->height, "cuMemcpy2DAsync");
}

// modules and launches

API CUresult cuModuleLoadData(Module **module, const void *image) {
    LOCK; CALL("cuModuleLoadData"); CONTEXT("cuModuleLoadData");
    auto made = std::make_unique<Module>();
    made->ptx = (const char *)image;
    const char *mark = "// fake-cuda source ";
    size_t at = made->ptx.rfind(mark);
    if (at == std::string::npos) return refuse(INVALID_IMAGE, "a module that did not come from the fake nvrtc");
    made->hash = made->ptx.substr(at + strlen(mark), 16);
    NOT_WHILE_CAPTURING(("cuModuleLoadData of src/" + made->hash).c_str());
    if (capturing) fake_log("src/%s is loaded while a stream records", made->hash.c_str());
    // A driver loads the PTX of its own version of CUDA and of earlier ones. Of CUDA 13.0 that is PTX 9.0, of 12.8 it is 8.7.
    int major = 0, minor = 0;
    size_t version = made->ptx.find(".version ");
    if (version != std::string::npos) sscanf(made->ptx.c_str() + version, ".version %d.%d", &major, &minor);
    int driver = settings().driver / 1000, known = driver >= 13 ? 90 + settings().driver % 1000 / 10 : driver == 12 ? 80 + std::min(8, settings().driver % 1000 / 10) : 78;
    if (10 * major + minor > known) return refuse(UNSUPPORTED_PTX_VERSION, "PTX %d.%d by a driver of CUDA %d", major, minor, settings().driver);
    *module = made.release();
    return SUCCESS;
}
API CUresult cuModuleUnload(Module *) { LOCK; CALL("cuModuleUnload"); return SUCCESS; }

API CUresult cuModuleGetFunction(Function **function, Module *module, const char *name) {
    LOCK; CALL("cuModuleGetFunction"); CONTEXT("cuModuleGetFunction");
    auto &found = module->functions[name];
    if (!found) {
        auto made = std::make_unique<Function>();
        made->module = module, made->name = name, made->hash = module->hash;
        bool compiled = module->ptx.find(".entry " + made->name) != std::string::npos;
        if (module->ptx.find(".version") != std::string::npos) {
            if (!compiled) return refuse(NOT_FOUND, "no entry %s in the PTX", name);
            made->parameters = parameters_of(module->ptx, made->name);
            size_t most = module->ptx.find(".maxntid ");
            if (most != std::string::npos) {
                int x = 1, y = 1, z = 1;
                sscanf(module->ptx.c_str() + most, ".maxntid %d, %d, %d", &x, &y, &z);
                made->max_threads = x * y * z;
            }
            int total = 0;
            for (int size : made->parameters) total += size;
            if (total > 4096) complain("kernel " + made->name + " " + made->hash + " has " + std::to_string(total) + " bytes of parameters");
        }
        std::string file = settings().dir + "/ptx/" + module->hash + ".ptx";
        // Other processes may do the same.
        auto written = [](const std::string &path, const std::string &text) {
            std::string own = path + "." + std::to_string(getpid());
            std::ofstream(own) << text;
            rename(own.c_str(), path.c_str());
        };
        struct stat there;
        if (compiled && stat(file.c_str(), &there) != 0) {
            mkdir((settings().dir + "/ptx").c_str(), 0755);
            written(file, module->ptx);
        }
        if (compiled && !settings().ptxas.empty()) {
            std::string output, kept = settings().dir + "/ptx/" + module->hash + ".txt";
            if (stat(kept.c_str(), &there) == 0) {
                std::ifstream in(kept);
                output.assign(std::istreambuf_iterator<char>(in), {});
            } else {
                std::string arch = "sm_" + std::to_string(settings().cc) + (settings().cc >= 90 ? "a" : "");
                int status = run_process({settings().ptxas, "-v", "-arch=" + arch, file, "-o", "/dev/null"}, output);
                if (status) output = "FAILED\n" + output;
                written(kept, output);
            }
            if (output.rfind("FAILED", 0) == 0) return refuse(INVALID_PTX, "ptxas refuses %s %s: %s", name, module->hash.c_str(), output.substr(0, 1500).c_str());
            made->registers = number_before(output, " registers");
            made->stack = number_before(output, " bytes stack frame");
            made->spills = number_before(output, " bytes spill stores");
            made->static_shared = number_before(output, " bytes smem");
            if (made->spills || made->stack)
                complain("kernel " + made->name + " " + made->hash + ": " + std::to_string(made->registers) + " registers, " + std::to_string(made->stack) +
                    " bytes of stack, " + std::to_string(made->spills) + " bytes spilled");
        }
        if (made->parameters.empty() && !settings().run) made->parameters = parameters_of_source(made->hash, made->name);
        if (settings().run) {
            made->state = fake_compile(settings().dir, made->hash, made->name, made->kernel) ? 1 : -1;
        }
        found = std::move(made);
    }
    *function = found.get();
    return SUCCESS;
}

static int most_dynamic() {
    int value;
    cuDeviceGetAttribute(&value, 97, 0);
    return value;
}

API CUresult cuFuncSetAttribute(Function *function, int attribute, int value) {
    LOCK; CALL("cuFuncSetAttribute");
    if (attribute == 8) { // MAX_DYNAMIC_SHARED_SIZE_BYTES
        if (value + function->static_shared > most_dynamic()) return refuse(INVALID_VALUE, "%s: %d bytes of dynamic and %d of static shared memory", function->name.c_str(), value, function->static_shared);
        function->max_dynamic = value;
    }
    return SUCCESS;
}
API CUresult cuFuncGetAttribute(int *value, int attribute, Function *function) {
    LOCK; CALL("cuFuncGetAttribute");
    *value = attribute == 0 ? function->max_threads : attribute == 4 ? function->registers : attribute == 8 ? function->max_dynamic : 0;
    return SUCCESS;
}

API CUresult cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Stream *stream, void **parameters, void **extra) {
    LOCK; CALL("cuLaunchKernel"); CONTEXT("cuLaunchKernel");
    if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || gx > 2147483647) return refuse(INVALID_VALUE, "%s: a grid of %u x %u x %u", f->name.c_str(), gx, gy, gz);
    if (!bx || !by || !bz || bx > 1024 || by > 1024 || bz > 64 || bx * by * bz > 1024) return refuse(INVALID_VALUE, "%s: a block of %u x %u x %u", f->name.c_str(), bx, by, bz);
    if ((int)(bx * by * bz) > f->max_threads) return refuse(INVALID_VALUE, "%s: %u threads where it was compiled for %d", f->name.c_str(), bx * by * bz, f->max_threads);
    if ((int)shared > f->max_dynamic && shared > 48 << 10) return refuse(INVALID_VALUE, "%s: %u bytes of shared memory without leave", f->name.c_str(), shared);
    if (f->registers && ((f->registers + 7) / 8 * 8) * ((bx * by * bz + 31) / 32 * 32) > 65536) return refuse(LAUNCH_OUT_OF_RESOURCES, "%s: %d registers x %u threads", f->name.c_str(), f->registers, bx * by * bz);
    if (extra) return refuse(NOT_SUPPORTED, "cuLaunchKernel with extra");
    // Autotune takes another kernel if there is one. The refusal comes at the launch, since CubeCL marks the inputs of a product as
    // invalid when a kernel cannot be loaded.
    if (f->state < 0 && settings().strict) return refuse(LAUNCH_OUT_OF_RESOURCES, "kernel %s %s cannot be run on the CPU", f->name.c_str(), f->hash.c_str());
    auto node = std::make_unique<Node>();
    node->type = 0, node->function = f, node->shared = shared;
    unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    memcpy(node->grid, grid, sizeof grid), memcpy(node->block, block, sizeof block);
    std::vector<int> sizes = f->parameters;
    if (sizes.empty() && settings().run) {
        if (f->state == 0) f->state = fake_compile(settings().dir, f->hash, f->name, f->kernel) ? 1 : -1;
        if (f->state == 1) sizes.assign(f->kernel.sizes, f->kernel.sizes + f->kernel.parameters);
    }
    for (size_t i = 0; i < sizes.size(); i++) node->arguments.emplace_back((char *)parameters[i], (char *)parameters[i] + sizes[i]);
    if (settings().trace) {
        std::string pointers;
        for (auto &argument : node->arguments)
            if (argument.size() == 8) {
                char digits[20];
                snprintf(digits, sizeof digits, " %lx", *(long *)argument.data());
                pointers += digits;
            }
        // The struct of scalars and of the lengths of buffers, as 32-bit numbers.
        std::string info;
        if (!node->arguments.empty() && node->arguments.back().size() != 8)
            for (size_t at = 0; at + 4 <= node->arguments.back().size(); at += 4) info += " " + std::to_string(*(unsigned *)(node->arguments.back().data() + at));
        fake_log("launch %s %s grid %u %u %u block %u %u %u shared %u:%s info%s", f->name.c_str(), f->hash.c_str(), gx, gy, gz, bx, by, bz, shared, pointers.c_str(), info.c_str());
    }
    return submit(stream, std::move(node));
}

// graphs

API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    LOCK; CALL("cuThreadExchangeStreamCaptureMode");
    if (!mode || *mode < 0 || *mode > 2) return refuse(INVALID_VALUE, "cuThreadExchangeStreamCaptureMode");
    if (*mode == 1) complain("the thread-local mode of a thread is taken for the global one");
    std::swap(*mode, thread_mode);
    return SUCCESS;
}
API CUresult cuStreamBeginCapture_v2(Stream *stream, int mode) {
    LOCK; CALL("cuStreamBeginCapture");
    if (!settings().graphs) return NOT_SUPPORTED;
    if (!streams.count(stream)) return refuse(INVALID_HANDLE, "cuStreamBeginCapture");
    if (stream->capturing) return refuse(INVALID_VALUE, "a stream that records is told to record");
    TRACE("recording begins");
    stream->capturing = true, stream->invalidated = false, stream->mode = mode, stream->by = pthread_self();
    stream->graph = new Graph();
    if (mode != 2) capturing++;
    return SUCCESS;
}
API CUresult cuStreamEndCapture(Stream *stream, Graph **graph) {
    LOCK;
    if (int code = injected("cuStreamEndCapture", ++counts().calls["cuStreamEndCapture"])) {
        // A capture that fails has ended.
        if (streams.count(stream) && stream->capturing) {
            capturing -= stream->mode != 2;
            stream->capturing = false;
            delete stream->graph;
            stream->graph = nullptr;
        }
        *graph = nullptr;
        return code;
    }
    if (!streams.count(stream) || !stream->capturing) return refuse(INVALID_VALUE, "cuStreamEndCapture of a stream that does not record");
    if (stream->mode != 2 && !pthread_equal(stream->by, pthread_self())) { return refuse((Result)908, "cuStreamEndCapture on another thread than cuStreamBeginCapture"); }
    stream->capturing = false;
    if (stream->mode != 2) capturing--;
    if (stream->invalidated) {
        delete stream->graph;
        stream->graph = nullptr, *graph = nullptr;
        return refuse(STREAM_CAPTURE_INVALIDATED, "cuStreamEndCapture: the recording was invalidated");
    }
    *graph = stream->graph;
    stream->graph = nullptr;
    long long kernels = 0, copies = 0;
    for (auto &node : (*graph)->nodes) kernels += node->type == 0, copies += node->type == 1;
    fake_log("GRAPH of %zu nodes: %lld kernels, %lld copies", (*graph)->nodes.size(), kernels, copies);
    return SUCCESS;
}
API CUresult cuGraphGetNodes(Graph *graph, Node **nodes, size_t *count) {
    LOCK; CALL("cuGraphGetNodes");
    if (nodes) for (size_t i = 0; i < *count && i < graph->nodes.size(); i++) nodes[i] = graph->nodes[i].get();
    *count = graph->nodes.size();
    return SUCCESS;
}
API CUresult cuGraphNodeGetType(Node *node, int *type) { LOCK; *type = node->type; return SUCCESS; }
API CUresult cuGraphInstantiateWithFlags(Exec **exec, Graph *graph, unsigned long long) {
    LOCK; CALL("cuGraphInstantiate"); NOT_WHILE_CAPTURING("cuGraphInstantiate");
    *exec = new Exec();
    for (auto &node : graph->nodes) {
        auto copy = std::make_unique<Node>();
        *copy = *node;
        (*exec)->has_memory_nodes |= copy->type >= 10;
        (*exec)->nodes.push_back(std::move(copy));
    }
    return SUCCESS;
}
API CUresult cuGraphUpload(Exec *, Stream *) { LOCK; CALL("cuGraphUpload"); return SUCCESS; }
API CUresult cuGraphLaunch(Exec *exec, Stream *stream) {
    LOCK; CALL("cuGraphLaunch"); CONTEXT("cuGraphLaunch");
    if (!streams.count(stream)) return refuse(INVALID_HANDLE, "cuGraphLaunch");
    if (stream->capturing) { complain("a graph is launched into a recording: not imitated"); return SUCCESS; }
    if (exec->has_memory_nodes && exec->launches++) return refuse(INVALID_VALUE, "a graph with memory nodes is launched again");
    for (auto &node : exec->nodes) {
        counts().graph_kernels += node->type == 0;
        if (Result r = execute(*node)) return r;
    }
    return SUCCESS;
}
API CUresult cuGraphDestroy(Graph *graph) { LOCK; CALL("cuGraphDestroy"); delete graph; return SUCCESS; }
API CUresult cuGraphExecDestroy(Exec *exec) { LOCK; CALL("cuGraphExecDestroy"); delete exec; return SUCCESS; }

// Tensor maps of the bulk copy engine, which kernels on the CPU read (device/device.h).

static CUresult tensor_map(FakeTensorMap *map, int type, unsigned rank, void *address, const unsigned long long *strides, const unsigned *box, const unsigned *element_strides) {
    if ((uintptr_t)map % 64) return refuse(INVALID_VALUE, "a tensor map that is not aligned to 64 bytes");
    if (rank < 1 || rank > 5 || (uintptr_t)address % 16) return refuse(INVALID_VALUE, "a tensor map of rank %u at %p", rank, address);
    for (unsigned i = 0; i + 1 < rank; i++) if (strides[i] % 16) return refuse(INVALID_VALUE, "a tensor map with a stride of %llu bytes", strides[i]);
    if (box) for (unsigned i = 0; i < rank; i++) if (!box[i] || box[i] > 256) return refuse(INVALID_VALUE, "a tensor map with a box of %u", box[i]);
    for (unsigned i = 0; i < rank; i++) if (!element_strides[i] || element_strides[i] > 8) return refuse(INVALID_VALUE, "a tensor map with an element stride of %u", element_strides[i]);
    static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4}; // CUtensorMapDataType
    if (type < 0 || type >= (int)sizeof bytes) return refuse(NOT_SUPPORTED, "a tensor map of type %d, which is not imitated", type);
    memset(map, 0, 128);
    map->address = (char *)address, map->rank = rank, map->element = bytes[type];
    return SUCCESS;
}
API CUresult cuTensorMapEncodeTiled(FakeTensorMap *map, int type, unsigned rank, void *address, const unsigned long long *sizes, const unsigned long long *strides, const unsigned *box, const unsigned *element_strides, int interleave, int swizzle, int, int fill) {
    LOCK; CALL("cuTensorMapEncodeTiled");
    CUresult result = tensor_map(map, type, rank, address, strides, box, element_strides);
    if (result) return result;
    for (unsigned i = 0; i < rank; i++) {
        if (element_strides[i] != 1 || interleave || swizzle > 3) return refuse(NOT_SUPPORTED, "a tensor map with gaps, interleaved or swizzled by other than 16 bytes, which is not imitated");
        map->sizes[i] = sizes[i], map->strides[i] = i ? strides[i - 1] : map->element, map->box[i] = box[i];
    }
    map->swizzle = swizzle, map->fills_nan = fill;
    return SUCCESS;
}
API CUresult cuTensorMapEncodeIm2col(FakeTensorMap *map, int type, unsigned rank, void *address, const unsigned long long *, const unsigned long long *strides, const int *, const int *, unsigned, unsigned, const unsigned *element_strides, int, int, int, int) {
    LOCK; CALL("cuTensorMapEncodeIm2col");
    return tensor_map(map, type, rank, address, strides, nullptr, element_strides);
}

// errors

#define ERRORS(X) \
    X(0, SUCCESS, "no error") X(1, ERROR_INVALID_VALUE, "invalid argument") X(2, ERROR_OUT_OF_MEMORY, "out of memory") X(3, ERROR_NOT_INITIALIZED, "initialization error") \
    X(46, ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable") X(100, ERROR_NO_DEVICE, "no CUDA-capable device is detected") X(101, ERROR_INVALID_DEVICE, "invalid device ordinal") X(200, ERROR_INVALID_IMAGE, "device kernel image is invalid") \
    X(201, ERROR_INVALID_CONTEXT, "invalid device context") X(218, ERROR_INVALID_PTX, "a PTX JIT compilation failed") X(222, ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain.") X(400, ERROR_INVALID_HANDLE, "invalid resource handle") \
    X(500, ERROR_NOT_FOUND, "named symbol not found") X(600, ERROR_NOT_READY, "device not ready") X(700, ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered") \
    X(701, ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch") X(719, ERROR_LAUNCH_FAILED, "unspecified launch failure") X(801, ERROR_NOT_SUPPORTED, "operation not supported") \
    X(900, ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing") X(901, ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture") \
    X(905, ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream") X(907, ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream") \
    X(908, ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread") X(999, ERROR_UNKNOWN, "unknown error")

API CUresult cuGetErrorName(CUresult error, const char **text) {
    switch (error) {
#define X(number, name, words) case number: *text = "CUDA_" #name; return SUCCESS;
        ERRORS(X)
#undef X
    }
    *text = "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}
API CUresult cuGetErrorString(CUresult error, const char **text) {
    switch (error) {
#define X(number, name, words) case number: *text = words; return SUCCESS;
        ERRORS(X)
#undef X
    }
    *text = "unknown error";
    return SUCCESS;
}

} // extern "C"
