// Runs generated kernels on the CPU. A kernel whose threads never wait for each other is run by a loop over its threads. In any other
// kernel every thread is a fiber, and a barrier, a shuffle or a vote switches to the next fiber.
#include "fake.h"
#include "thread.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <regex>
#include <sstream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

__thread FakeThread *fake_self = nullptr;

// ------------------------------------------------------------------------------------------------ the runtime

enum State { READY, AT_BLOCK, AT_WARP, AT_WORD, DONE };

struct Warp {
    uint64_t values[2][32];
    unsigned came[2]; // the lanes that took part in each of the last two operations
    unsigned waiting, alive;
    unsigned operation; // number of operations so far
};

struct BlockRun {
    std::vector<FakeThread> threads;
    std::vector<Warp> warps;
    const FakeKernel *kernel;
    void **arguments;
    void *main_stack;
    unsigned alive;
};

static __thread BlockRun *running = nullptr;

/// Pushes the registers that a callee preserves (System V ABI, x86-64) onto this stack and continues on the stack `load`.
extern "C" void fake_switch(void **save, void *load);
asm(R"(
.text
.globl fake_switch
.hidden fake_switch
.type fake_switch,@function
fake_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size fake_switch, .-fake_switch
)");

static void to_main() {
    FakeThread *self = fake_self;
    fake_switch(&self->stack_pointer, running->main_stack);
}

static void wake_warp(BlockRun *run, unsigned warp) {
    Warp &w = run->warps[warp];
    for (unsigned lane = 0; lane < 32; lane++)
        if (w.waiting >> lane & 1) run->threads[warp * 32 + lane].state = READY;
    w.waiting = 0;
    w.operation++;
}

/// The fiber's first function.
static void begin() {
    running->kernel->call(running->arguments);
    FakeThread *self = fake_self;
    self->state = DONE;
    running->alive--;
    Warp &w = running->warps[self->warp];
    w.alive &= ~(1u << self->lane);
    // Lanes that wait for this one alone continue.
    if (w.waiting && w.waiting == w.alive) {
        wake_warp(running, self->warp);
    }
    to_main();
    abort();
}

extern "C" {

void fake_sync_block(void) {
    if (!running) return;
    fake_self->state = AT_BLOCK;
    to_main();
}

void fake_wait(const uint32_t *word, uint32_t mask, uint32_t value) {
    FakeThread *self = fake_self;
    if ((*word & mask) != value) return;
    self->word = word, self->mask = mask, self->value = value, self->state = AT_WORD;
    to_main();
}

static unsigned meet(uint64_t value, const uint64_t **values) {
    FakeThread *self = fake_self;
    BlockRun *run = running;
    if (!run) { fprintf(stderr, "fake-cuda: a warp operation in a kernel that was taken for one without\n"); abort(); }
    Warp &w = run->warps[self->warp];
    int parity = w.operation & 1;
    if (!w.waiting) w.came[parity] = 0;
    w.values[parity][self->lane] = value;
    w.came[parity] |= 1u << self->lane;
    w.waiting |= 1u << self->lane;
    self->state = AT_WARP;
    if (w.waiting == w.alive) {
        // The last lane wakes the others and continues.
        wake_warp(run, self->warp);
    } else {
        to_main();
    }
    if (values) *values = w.values[parity];
    return w.came[parity];
}

unsigned fake_sync_warp(unsigned) { return meet(0, nullptr); }

const uint64_t *fake_exchange(uint64_t value, unsigned, unsigned *lanes) {
    const uint64_t *values;
    *lanes = meet(value, &values);
    return values;
}

unsigned fake_active(void) { return running ? running->warps[fake_self->warp].alive : 1u << fake_self->lane; }
}

static const size_t STACK = 128 << 10;

static char *stacks(unsigned n) {
    static __thread char *at = nullptr;
    static __thread unsigned room = 0;
    if (n > room) {
        at = (char *)mmap(nullptr, STACK * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) abort();
        room = n;
    }
    return at;
}

static char *shared_memory() {
    static __thread char *at = nullptr;
    if (!at) at = (char *)aligned_alloc(1024, 256 << 10);
    return at;
}

// A fault within a kernel is reported with the kernel and the thread.
static char what_runs[512] = "nothing";
static struct sigaction before[2];
static void fault(int signal, siginfo_t *info, void *context) {
    char line[1024];
    FakeThread *t = fake_self;
    int n = snprintf(line, sizeof line, "fake-cuda: signal %d at address %p in kernel %s, block %u %u %u thread %u %u %u\n", signal, info->si_addr, what_runs,
        t ? t->bid.x : 0, t ? t->bid.y : 0, t ? t->bid.z : 0, t ? t->tid.x : 0, t ? t->tid.y : 0, t ? t->tid.z : 0);
    if (write(2, line, n) < 0) {}
    if (!strcmp(what_runs, "nothing")) {
        struct sigaction &old = before[signal == SIGBUS];
        if (old.sa_flags & SA_SIGINFO && old.sa_sigaction) { old.sa_sigaction(signal, info, context); return; }
    }
    _exit(139);
}
static void watch_faults() {
    static bool done = false;
    if (done) return;
    done = true;
    struct sigaction action = {};
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGBUS, &action, &before[1]);
}

/// The order of blocks, and of the threads of a block between barriers, which a GPU does not promise: another one for every launch,
/// drawn from FAKE_CUDA_SEED; with 0 they come one after the other. A kernel without a barrier that it needs finds values of before.
static unsigned long long drawn() {
    static unsigned long long state = [] {
        const char *text = getenv("FAKE_CUDA_SEED");
        unsigned long long seed = text && *text ? strtoull(text, nullptr, 10) : 1;
        if (seed) fake_log("NOTE blocks and threads run in random order: FAKE_CUDA_SEED=%llu", seed);
        return seed * 0x9E3779B97F4A7C15ull;
    }();
    if (!state) return 0;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

/// The numbers below `n` in an order of their own: every `step`-th, from `first` on.
struct Order {
    unsigned long long n, first, step;
    explicit Order(unsigned long long n) : n(n), first(drawn() % n), step(drawn() % n) {
        auto divisor = [](unsigned long long a, unsigned long long b) { while (b) { auto rest = a % b; a = b, b = rest; } return a; };
        if (!step) step = 1;
        while (divisor(step, n) != 1) step++;
    }
    unsigned operator[](unsigned long long i) const { return (first + i * step) % n; }
};

void fake_run(const FakeKernel &kernel, const std::string &name, const std::string &hash, const unsigned grid[3], const unsigned block[3],
    unsigned shared, void **arguments) {
    watch_faults();
    snprintf(what_runs, sizeof what_runs, "%s %s", name.c_str(), hash.c_str());
    unsigned n = block[0] * block[1] * block[2];
    fake_uint3 bdim = {block[0], block[1], block[2]}, gdim = {grid[0], grid[1], grid[2]};
    char *memory = shared_memory();
    Order blocks((unsigned long long)grid[0] * grid[1] * grid[2]), threads(n);
    auto place = [&](unsigned long long number) { return fake_uint3{unsigned(number % grid[0]), unsigned(number / grid[0] % grid[1]), unsigned(number / grid[0] / grid[1])}; };
    if (!kernel.meets) {
        FakeThread self = {};
        self.bdim = bdim, self.gdim = gdim, self.shared = memory;
        fake_self = &self;
        for (unsigned long long b = 0; b < blocks.n; b++) {
            self.bid = place(blocks[b]);
            if (shared) memset(memory, 0xFF, shared);
            for (unsigned k = 0; k < n; k++) {
                unsigned i = threads[k];
                self.tid = {i % block[0], i / block[0] % block[1], i / (block[0] * block[1])};
                self.lane = i % 32, self.warp = i / 32;
                kernel.call(arguments);
            }
        }
        fake_self = nullptr;
        strcpy(what_runs, "nothing");
        return;
    }
    BlockRun run;
    run.kernel = &kernel, run.arguments = arguments;
    run.threads.resize(n), run.warps.resize((n + 31) / 32);
    char *stack = stacks(n);
    BlockRun *outer = running;
    running = &run;
    for (unsigned long long b = 0; b < blocks.n; b++) {
        fake_uint3 bid = place(blocks[b]);
        memset(memory, 0xFF, shared); // NaN
        run.alive = n;
        for (unsigned w = 0; w < run.warps.size(); w++) {
            unsigned lanes = n - w * 32 < 32 ? n - w * 32 : 32;
            run.warps[w].waiting = 0, run.warps[w].operation = 0;
            run.warps[w].alive = lanes == 32 ? ~0u : (1u << lanes) - 1;
        }
        for (unsigned i = 0; i < n; i++) {
            FakeThread &t = run.threads[i];
            t = {};
            t.tid = {i % block[0], i / block[0] % block[1], i / (block[0] * block[1])};
            t.bid = bid, t.bdim = bdim, t.gdim = gdim, t.shared = memory;
            t.lane = i % 32, t.warp = i / 32;
            void **top = (void **)(stack + (i + 1) * STACK - 64);
            *--top = nullptr;         // in place of a return address: aligns the stack as after a call
            *--top = (void *)begin;
            for (int r = 0; r < 6; r++) *--top = nullptr;
            t.stack_pointer = top;
        }
        while (run.alive) {
            bool moved = false;
            Order threads(n);
            for (unsigned k = 0; k < n; k++) {
                unsigned i = threads[k];
                FakeThread &t = run.threads[i];
                if (t.state == AT_WORD && (*t.word & t.mask) != t.value) t.state = READY;
                if (t.state == READY) {
                    moved = true;
                    fake_self = &run.threads[i];
                    fake_switch(&run.main_stack, run.threads[i].stack_pointer);
                }
            }
            if (moved) continue;
            // All threads wait. If all of them are at the block's barrier, they continue.
            unsigned at_block = 0;
            for (unsigned i = 0; i < n; i++) at_block += run.threads[i].state == AT_BLOCK;
            if (at_block == run.alive) {
                for (unsigned i = 0; i < n; i++)
                    if (run.threads[i].state == AT_BLOCK) run.threads[i].state = READY;
                continue;
            }
            // Otherwise some wait for lanes of their warp that wait elsewhere: a divergent operation of the warp, which
            // takes place among the lanes that arrived.
            bool woken = false;
            for (unsigned w = 0; w < run.warps.size(); w++)
                if (run.warps[w].waiting) wake_warp(&run, w), woken = true;
            static bool told = false;
            if (!told) told = true, fake_log("NOTE kernel %s %s: a warp operation of some lanes only", name.c_str(), hash.c_str());
            if (!woken) { fake_log("kernel %s %s: its threads wait for each other for ever", name.c_str(), hash.c_str()); abort(); }
        }
    }
    running = outer;
    fake_self = nullptr;
    strcpy(what_runs, "nothing");
}

// ------------------------------------------------------------------------------------------------ compiling

static std::string here() {
    Dl_info info;
    dladdr((void *)&fake_compile, &info);
    std::string path = info.dli_fname;
    char *real = realpath(path.c_str(), nullptr);
    if (real) path = real;
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

/// Splits at `by` outside of brackets and strings; "::" is no colon.
static std::vector<std::string> split(const std::string &text, char by) {
    std::vector<std::string> parts(1);
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < text.size(); i++) {
        char c = text[i];
        if (quoted) {
            parts.back() += c;
            if (c == '\\') parts.back() += text[++i];
            else if (c == '"') quoted = false;
            continue;
        }
        if (c == '"') quoted = true;
        if (c == '(' || c == '[' || c == '{') depth++;
        if (c == ')' || c == ']' || c == '}') depth--;
        if (c == by && !depth) {
            if (by == ':' && i + 1 < text.size() && text[i + 1] == ':' ) {
                // An empty section is written ": :" by the generator; "::" is a name's.
                parts.back() += "::"; i++;
                continue;
            }
            parts.emplace_back();
        } else parts.back() += c;
    }
    return parts;
}

static std::string trimmed(const std::string &text) {
    size_t from = text.find_first_not_of(" \n\t"), to = text.find_last_not_of(" \n\t");
    return from == std::string::npos ? "" : text.substr(from, to - from + 1);
}

/// `"=r"(x), "f"(y)` -> x, y
static std::vector<std::string> operands(const std::string &section) {
    std::vector<std::string> names;
    for (auto &part : split(section, ',')) {
        std::string text = trimmed(part);
        size_t open = text.find('(');
        if (open == std::string::npos) continue;
        names.push_back(text.substr(open + 1, text.rfind(')') - open - 1));
    }
    return names;
}

/// Replaces inline PTX with calls of fake_ptx; `unknown` is the first instruction that is not imitated.
static std::string without_asm(const std::string &source, std::string &unknown) {
    std::string out;
    static const std::regex head(R"(\basm\s*(volatile)?\s*\()");
    std::smatch match;
    std::string rest = source;
    while (std::regex_search(rest, match, head)) {
        out += match.prefix();
        std::string tail = match.suffix();
        int depth = 1;
        bool quoted = false;
        size_t end = 0;
        for (; end < tail.size(); end++) {
            char c = tail[end];
            if (quoted) { if (c == '\\') end++; else if (c == '"') quoted = false; continue; }
            if (c == '"') quoted = true;
            if (c == '(') depth++;
            if (c == ')' && !--depth) break;
        }
        auto sections = split(tail.substr(0, end), ':');
        std::string text = trimmed(sections[0]);
        if (text.size() > 2 && !fake_knows(text.substr(1)) && unknown.empty()) unknown = text;
        auto outs = sections.size() > 1 ? operands(sections[1]) : std::vector<std::string>();
        auto ins = sections.size() > 2 ? operands(sections[2]) : std::vector<std::string>();
        std::ostringstream call;
        call << "{ FakeOperand fake_outs_[] = {{nullptr, 0}";
        for (auto &name : outs) call << ", {(void *)&(" << name << "), (int)sizeof(" << name << ")}";
        call << "}; ";
        for (size_t i = 0; i < ins.size(); i++) call << "auto fake_in_" << i << "_ = " << ins[i] << "; ";
        call << "FakeOperand fake_ins_[] = {{nullptr, 0}";
        for (size_t i = 0; i < ins.size(); i++) call << ", {(void *)&fake_in_" << i << "_, (int)sizeof fake_in_" << i << "_}";
        call << "}; fake_ptx(" << text << ", fake_outs_ + 1, " << outs.size() << ", fake_ins_ + 1, " << ins.size() << "); }";
        out += call.str();
        rest = tail.substr(end + 1);
    }
    return out + rest;
}

bool fake_compile(const std::string &dir, const std::string &hash, const std::string &name, FakeKernel &kernel) {
    std::string base = dir + "/cpu/" + hash, library = base + ".so";
    mkdir((dir + "/cpu").c_str(), 0755);
    std::ifstream in(dir + "/src/" + hash + ".cu");
    std::string source((std::istreambuf_iterator<char>(in)), {});
    utimensat(AT_FDCWD, (dir + "/src/" + hash + ".cu").c_str(), nullptr, 0); // tells `kernels.py registers --newer` of its use
    if (source.empty()) { fake_log("no source %s below %s/src", hash.c_str(), dir.c_str()); return false; }
    bool meets = std::regex_search(source, std::regex("__syncthreads|__syncwarp|_sync\\(|wmma|barrier|cooperative|asm"));
    struct stat there;
    if (stat((base + ".failed").c_str(), &there) == 0) return false;
    if (stat(library.c_str(), &there) != 0) {
        std::string text = source;
        // uint64_t is unsigned long on the host and unsigned long long in CUDA.
        text = std::regex_replace(text, std::regex("typedef [a-z ]+ u?int(8|16|32|64)_t;"), "");
        text = std::regex_replace(text, std::regex("\\buint64_t\\b"), "fake_uint64");
        text = std::regex_replace(text, std::regex("\\bint64_t\\b"), "fake_int64");
        text = std::regex_replace(text, std::regex("extern __shared__ __align__\\(\\d+\\) char (\\w+)\\[\\];"), "char *$1 = fake_self->shared;");
        text = std::regex_replace(text, std::regex("#include <(cooperative_groups|cuda/barrier)[^>]*>"), ""); // device.h has what is used of them
        std::string unknown;
        text = without_asm(text, unknown);
        if (!unknown.empty()) {
            std::ofstream(base + ".failed") << "not imitated: " << unknown << "\n";
            fake_log("kernel %s %s is not imitated: %s", name.c_str(), hash.c_str(), unknown.c_str());
            return false;
        }
        std::string own = base + "." + std::to_string(getpid()); // other processes may compile it too
        std::ofstream(own + ".cpp") << "#include \"device.h\"\n#line 1 \"" << hash << ".cu\"\n" << text << "\nFAKE_ENTRY(" << name << ")\n";
        const char *flags = getenv("FAKE_CUDA_CXXFLAGS");
        std::string command = "g++ -std=c++17 -O1 -fPIC -shared -w -fno-strict-aliasing -ffp-contract=off -I'" + here() + "/device' -I'" + here() + "' " + (flags ? flags : "") +
            " '" + own + ".cpp' '" + here() + "/libcuda.so.1' -Wl,-rpath,'" + here() + "' -o '" + own + ".so' 2>'" + own + ".log'";
        int status = system(command.c_str());
        rename((own + ".cpp").c_str(), (base + ".cpp").c_str());
        if (status) {
            rename((own + ".log").c_str(), (base + ".failed").c_str());
            fake_log("g++ refuses kernel %s %s: see %s.failed", name.c_str(), hash.c_str(), base.c_str());
            return false;
        }
        unlink((own + ".log").c_str());
        rename((own + ".so").c_str(), library.c_str());
    }
    void *loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!loaded) { fake_log("%s", dlerror()); return false; }
    kernel.call = (void (*)(void **))dlsym(loaded, "fake_entry");
    kernel.parameters = ((int (*)())dlsym(loaded, "fake_parameters"))();
    kernel.sizes = ((const int *(*)())dlsym(loaded, "fake_sizes"))();
    kernel.meets = meets;
    return kernel.call;
}
