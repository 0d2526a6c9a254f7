// A device made of a CPU, for tests: takes orders on stdin, answers on stdout, and runs the kernels on the shim.
//
// An order is a byte and little-endian numbers; addresses are this process's own:
//   A size              -> address    memory, filled with zeros; what lies behind it cannot be touched
//   W address size data
//   R address size      -> data
//   L seed name grid(3) block count {size data}   the kernel's arguments by value
//   G m n k a lda b ldb d ldd type                d (m, n) = a (m, k) times b (n, k) transposed; type 0: f32 out, 1: activations
// After each of them comes a byte: 0, or 1 and a message, with its length first.
#include "shim.h"

#include "decode.cu"
#include "embed.cu"
#include "norm.cu"
#include "prefill.cu"
#include "qkv.cu"
#include "quant.cu"
#include "sample.cu"
#include "swiglu.cu"
#ifdef BROKEN
#include "broken.cu"
#endif

#include <cstdio>
#include <functional>
#include <map>
#include <setjmp.h>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <utility>
#include <vector>

extern char __start_weir_shared[], __stop_weir_shared[];

namespace shim {
Dim3 thread, block, block_size, grid_size;
uint64_t lanes[32 * 32];

enum State { READY, AT_BLOCK, AT_WARP, DONE };
const size_t STACK = 256 << 10;

// Made once and used for block after block. After its first start a fiber is left and entered by jumps, which unlike contexts cost no
// call of the system.
struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool is_started;
    State state;
};

static std::vector<Fiber*> fibers;
static jmp_buf scheduler;
static std::vector<unsigned> ready;
static unsigned current, live;
// A warp whose threads run only while no others can: what a barrier is for shows where one is far behind.
static unsigned slow;
static unsigned at_block, at_warp[32], warp_live[32];
static const std::function<void()>* body;
static uint64_t random_state;

static uint32_t next_random() {
    // SplitMix64
    uint64_t z = random_state += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static void wake(State state, unsigned first, unsigned end) {
    for (unsigned at = first; at < end && at < fibers.size(); ++at)
        if (fibers[at]->state == state) fibers[at]->state = READY, ready.push_back(at);
}
static void settle_block() {
    if (live > 0 && at_block == live) at_block = 0, wake(AT_BLOCK, 0, block_size.x);
}
static void settle_warp(unsigned warp) {
    if (warp_live[warp] > 0 && at_warp[warp] == warp_live[warp]) at_warp[warp] = 0, wake(AT_WARP, warp * 32, warp * 32 + 32);
}

static void leave() {
    if (!_setjmp(fibers[current]->place)) _longjmp(scheduler, 1);
}

static void yield(State state) {
    fibers[current]->state = state;
    if (state == AT_BLOCK) ++at_block, settle_block();
    else ++at_warp[current / 32], settle_warp(current / 32);
    leave();
}
void wait_block() { yield(AT_BLOCK); }
void wait_warp() { yield(AT_WARP); }

static void entry() {
    for (;;) {
        (*body)();
        fibers[current]->state = DONE;
        --live, --warp_live[current / 32];
        settle_block();
        settle_warp(current / 32);
        leave();
    }
}

__attribute__((noinline)) static void resume() {
    if (_setjmp(scheduler)) return;
    Fiber* fiber = fibers[current];
    if (fiber->is_started) _longjmp(fiber->place, 1);
    fiber->is_started = true;
    setcontext(&fiber->context);
}

static unsigned draw_thread() {
    if (next_random() % 1024 == 0) slow = next_random() % (block_size.x / 32 + 1);
    unsigned pick = 0;
    for (int tries = 0; tries < 12; ++tries) {
        pick = next_random() % ready.size();
        if (ready[pick] / 32 != slow) break;
    }
    unsigned thread = ready[pick];
    ready[pick] = ready.back();
    ready.pop_back();
    return thread;
}

static void make_fiber() {
    Fiber* fiber = new Fiber();
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = malloc(STACK);
    fiber->context.uc_stack.ss_size = STACK;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, entry, 0);
    fibers.push_back(fiber);
}

// One block; false where threads wait for others that never come.
static bool run_block(const std::function<void()>& kernel) {
    body = &kernel;
    memset(__start_weir_shared, 0xff, __stop_weir_shared - __start_weir_shared);
    memset(lanes, 0xff, sizeof lanes);
    live = block_size.x, at_block = 0, ready.clear();
    for (unsigned warp = 0; warp < 32; ++warp) at_warp[warp] = 0, warp_live[warp] = 0;
    while (fibers.size() < block_size.x) make_fiber();
    slow = next_random() % (block_size.x / 32 + 1);
    for (unsigned at = 0; at < fibers.size(); ++at) {
        fibers[at]->state = at < block_size.x ? READY : DONE;
        if (at < block_size.x) ready.push_back(at), ++warp_live[at / 32];
    }
    while (!ready.empty()) {
        current = draw_thread();
        thread = {current, 0, 0};
        resume();
    }
    if (live == 0) return true;
    // They stand in the middle of a kernel.
    fibers.clear();
    return false;
}
} // namespace shim

typedef std::vector<std::vector<char>> Arguments;

// Calls a kernel with arguments from bytes, as the driver does.
template <class... A, size_t... I> static bool call(void (*kernel)(A...), const Arguments& arguments, std::index_sequence<I...>) {
    const size_t sizes[] = {sizeof(A)...};
    if (arguments.size() != sizeof...(A)) return false;
    for (size_t at = 0; at < arguments.size(); ++at)
        if (arguments[at].size() != sizes[at]) return false;
    std::function<void()> body = [&] { kernel(*(const typename std::remove_reference<A>::type*)arguments[I].data()...); };
    std::vector<Dim3> blocks;
    for (unsigned z = 0; z < shim::grid_size.z; ++z)
        for (unsigned y = 0; y < shim::grid_size.y; ++y)
            for (unsigned x = 0; x < shim::grid_size.x; ++x) blocks.push_back({x, y, z});
    // No block may rely on another one of its launch.
    for (size_t left = blocks.size(); left > 1; --left) std::swap(blocks[left - 1], blocks[shim::next_random() % left]);
    for (Dim3 block : blocks) {
        shim::block = block;
        if (!shim::run_block(body)) throw std::string("threads wait at a barrier that others never reach");
    }
    return true;
}

typedef std::function<bool(const Arguments&)> Kernel;
template <class... A> static Kernel kernel(void (*function)(A...)) {
    return [function](const Arguments& arguments) { return call(function, arguments, std::index_sequence_for<A...>()); };
}

#define NAMED(name) {#name, kernel(name)}
static const std::map<std::string, Kernel> KERNELS = {
    NAMED(rms_norm), NAMED(embed), NAMED(embed_int8), NAMED(embed_int4), NAMED(update_tables), NAMED(swiglu), NAMED(qkv_finish), NAMED(paged_prefill), NAMED(paged_decode),
    NAMED(combine), NAMED(int8_gemv_1), NAMED(int8_gemv_2), NAMED(int8_gemv_4), NAMED(int8_gemv_8), NAMED(int4_gemv_1), NAMED(int4_gemv_2),
    NAMED(int4_gemv_4), NAMED(int4_gemv_8), NAMED(int8_gemm), NAMED(int4_gemm), NAMED(int8_dequantize), NAMED(int4_dequantize), NAMED(sample),
    NAMED(count_tokens),
#ifdef BROKEN
    NAMED(sum_without_barrier), NAMED(sum_with_barrier), NAMED(barrier_of_half), NAMED(lanes_in_step), NAMED(reads_askew), NAMED(blocks_in_order), NAMED(reads_behind),
#endif
};

static void read_exactly(void* to, size_t size) {
    if (size && fread(to, size, 1, stdin) != 1) exit(0);
}
static uint64_t number() {
    uint64_t value;
    read_exactly(&value, 8);
    return value;
}
static std::vector<char> bytes(size_t size) {
    std::vector<char> data(size);
    read_exactly(data.data(), size);
    return data;
}
static void answer(const void* data, size_t size) { fwrite(data, 1, size, stdout); }

// Memory that ends where nothing may be touched; its beginning is a multiple of 16.
static uint64_t allocate(uint64_t size) {
    const uint64_t page = 4096;
    uint64_t padded = (size + 15) / 16 * 16, pages = (padded + page - 1) / page * page;
    char* memory = (char*)mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::string("there is no memory");
    mprotect(memory + pages, page, PROT_NONE);
    return (uint64_t)(memory + pages - padded);
}

static void multiply() {
    uint64_t m = number(), n = number(), k = number();
    const act* a = (const act*)number();
    uint64_t lda = number();
    const act* b = (const act*)number();
    uint64_t ldb = number();
    char* d = (char*)number();
    uint64_t ldd = number(), type = number();
    for (uint64_t i = 0; i < m; ++i)
        for (uint64_t j = 0; j < n; ++j) {
            float sum = 0.0f;
            for (uint64_t at = 0; at < k; ++at) sum += act_to_float(a[i * lda + at]) * act_to_float(b[j * ldb + at]);
            if (type) ((act*)d)[i * ldd + j] = float_to_act(sum);
            else ((float*)d)[i * ldd + j] = sum;
        }
}

static void launch() {
    shim::random_state = number();
    std::vector<char> letters = bytes(number());
    std::string name(letters.begin(), letters.end());
    shim::grid_size = {(unsigned)number(), 0, 0};
    shim::grid_size.y = (unsigned)number();
    shim::grid_size.z = (unsigned)number();
    shim::block_size = {(unsigned)number(), 1, 1};
    Arguments arguments(number());
    for (auto& argument : arguments) argument = bytes(number());
    auto found = KERNELS.find(name);
    if (found == KERNELS.end()) throw "no kernel " + name;
    if (!found->second(arguments)) throw "the arguments of " + name + " do not fit";
}

int main() {
    for (int order; (order = getchar()) != EOF;) {
        std::string failure;
        try {
            uint64_t address, size;
            switch (order) {
            case 'A':
                address = allocate(number());
                answer(&address, 8);
                break;
            case 'W':
                address = number(), size = number();
                read_exactly((void*)address, size);
                break;
            case 'R':
                address = number(), size = number();
                answer((void*)address, size);
                break;
            case 'L': launch(); break;
            case 'G': multiply(); break;
            default: return 2;
            }
        } catch (const std::string& message) {
            failure = message;
        }
        char status = failure.empty() ? 0 : 1;
        answer(&status, 1);
        if (status) {
            uint64_t size = failure.size();
            answer(&size, 8);
            answer(failure.data(), size);
        }
        fflush(stdout);
    }
    return 0;
}
