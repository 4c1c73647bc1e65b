// CUDA C++ on a CPU, for tests: the threads of a block are fibers that synchronize where CUDA's threads do.
//
// A fiber runs until it reaches a barrier of its block or an exchange within its warp; then the next one runs, in ascending
// or in descending order, so that code with a missing barrier gives a wrong result in one of the two orders. Blocks run
// one after another, so shared memory is static memory.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#define __device__
#define __global__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
// Nothing but shared memory is in the section of zeroed memory, so that it can be told from all else, and filled with NaN when a
// block begins. (g++ ignores sections that are given to variables of templates.)
#define STATE static __attribute__((section("emulator_state")))
extern "C" char __bss_start __attribute__((visibility("hidden"))), _end __attribute__((visibility("hidden")));

// watch.h, which looks at accesses.
#ifdef __SANITIZE_THREAD__
extern "C" {
void watch_launch(void* stacks, uint64_t nbytes, void* shared, void* end);
void watch_block(unsigned b);
void watch_thread(unsigned t);
void watch_barrier();
void watch_sync(unsigned warp);
void watch_fence();
void watch_arrive();
}
#else
static void watch_launch(void*, uint64_t, void*, void*) {}
static void watch_block(unsigned) {}
static void watch_thread(unsigned) {}
static void watch_barrier() {}
static void watch_sync(unsigned) {}
static void watch_fence() {}
static void watch_arrive() {}
#endif

using std::acos; using std::acosh; using std::asin; using std::asinh; using std::atan; using std::atan2; using std::atanh;
using std::erfc; using std::exp2; using std::lgamma; using std::hypot; using std::trunc; using std::ceil; using std::copysign; using std::cos; using std::cosh; using std::erf; using std::exp;
using std::expm1; using std::floor; using std::fmod; using std::log; using std::log10; using std::log1p; using std::log2;
using std::pow; using std::rint; using std::sin; using std::sinh; using std::sqrt; using std::tan; using std::tanh;

// CUDA has this one, the standard library has not: Halley's iteration from Winitzki's approximation.
static inline double erfinv(double y) {
    if (y != y || std::fabs(y) > 1) return NAN;
    if (std::fabs(y) == 1) return y * INFINITY;
    double a = 0.147, b = std::log1p(-y * y), c = 2 / (M_PI * a) + b / 2, rest = 1 - std::fabs(y);
    double x = std::sqrt(std::sqrt(c * c - b / a) - c);
    for (int k = 0; k < 4; k++) {
        double away = std::fabs(y) < 0.5 ? std::erf(x) - std::fabs(y) : rest - std::erfc(x);
        double step = away / (2 / std::sqrt(M_PI) * std::exp(-x * x));
        x -= step / (1 + x * step);
    }
    return std::copysign(x, y);
}
static inline float erfinv(float y) { return (float)erfinv((double)y); }

struct Index { unsigned x = 0; };
STATE Index gridDim, blockDim, blockIdx, threadIdx;

namespace emulator {

enum State { READY, AT_WARP, AT_BLOCK, DONE };
constexpr unsigned MOST = 1024;
// Not a power of two: the tops of all stacks would share a few lines of the cache.
constexpr size_t STACK = (64 << 10) + 320;

// A switch of stacks saves the registers that the calling convention makes a callee save; ucontext also calls the kernel.
#if defined(__x86_64__)
extern "C" void emulator_switch(void** from, void* to);
asm(".text\n.globl emulator_switch\n.hidden emulator_switch\nemulator_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

struct Context {
    void* top;
    void start(char* stack, void (*run)()) {
        // The function is entered as by a call: 16-byte alignment, then a return address, which it never uses.
        void** words = (void**)(stack + STACK - 64);
        *--words = nullptr;
        *--words = (void*)run;
        // No frame comes before the first one.
        words[-1] = nullptr;
        top = words - 6;
    }
    void switch_to(Context& other) { emulator_switch(&top, other.top); }
};
#else
struct Context {
    ucontext_t all;
    void start(char* stack, void (*run)()) {
        getcontext(&all);
        all.uc_stack.ss_sp = stack;
        all.uc_stack.ss_size = STACK;
        all.uc_link = nullptr;
        makecontext(&all, run, 0);
    }
    void switch_to(Context& other) { swapcontext(&all, &other.all); }
};
#endif

STATE Context contexts[MOST], home;
STATE State states[MOST];
STATE char* stacks;
STATE unsigned started, running;
STATE uint64_t slots[2][MOST];
STATE unsigned char turns[MOST];
// Is a warp at __syncwarp(), which orders accesses of memory, as no shuffle does?
STATE bool ordering[MOST / 32];
STATE void (*work)(void*);
STATE void* work_of;
// The calls that have led a thread to where it waits, as a number; have threads of a warp met that came there by others?
STATE uint64_t places[MOST];
STATE bool apart;

static __attribute__((noinline)) void stop(State state) {
    unsigned me = running;
#if !defined(__SANITIZE_THREAD__) && !defined(CONTRACTED)
    // An optimizing compiler makes several calls of one.
    char *low = stacks + me * STACK, *high = low + STACK;
    places[me] = 0;
    for (char** frame = (char**)__builtin_frame_address(0); (char*)frame > low && (char*)frame < high; frame = (char**)frame[0])
        places[me] = places[me] * 31 + (uint64_t)frame[1];
#endif
    states[me] = state;
    contexts[me].switch_to(home);
    threadIdx.x = me;
}

// A fiber is never destroyed: it waits for the thread with its index in the next block.
static void live() {
    for (;;) {
        work(work_of);
        stop(DONE);
    }
}

// Wake a group once none of its members can run: all remaining ones have arrived. If those of a warp are not at the same place,
// a GPU does not define what they exchange.
static bool release(unsigned first, unsigned last, State at) {
    bool found = false;
    unsigned leads = first;
    for (unsigned i = first; i < last; ++i) {
        if (states[i] == DONE) continue;
        if (states[i] != at) return false;
        found = true;
    }
    for (unsigned i = first; found && i < last; ++i) {
        if (states[i] != at) continue;
        states[i] = READY;
        apart |= leads / 32 == i / 32 && states[leads] == READY && places[leads] != places[i];
        leads = i;
    }
    // What a thread that has ended, or is not there, has in an exchange is not defined on a GPU: here it is NaN, or -1.
    for (unsigned i = first; found && at == AT_WARP && i < first + 32; ++i)
        if (i >= last || states[i] == DONE) slots[turns[leads]][i] = ~(uint64_t)0;
    if (found && at == AT_BLOCK) watch_barrier();
    if (found && at == AT_WARP && ordering[first / 32]) ordering[first / 32] = false, watch_sync(first / 32);
    return found;
}

// Run the threads of a warp until each is done or waits for other warps. One warp after another, so that its stacks stay in the
// cache from one exchange to the next.
static void run_warp(unsigned first, unsigned last, bool falling) {
    do {
        for (unsigned k = first; k < last; ++k) {
            unsigned i = falling ? first + last - 1 - k : k;
            if (states[i] != READY) continue;
            running = threadIdx.x = i;
            watch_thread(i);
            home.switch_to(contexts[i]);
            watch_thread(MOST);
        }
    } while (release(first, last, AT_WARP));
}

static bool run_block(unsigned threads, bool falling) {
#ifndef __SANITIZE_ADDRESS__
    std::memset(&__bss_start, 0xff, &_end - &__bss_start);
#endif
    for (; started < threads; ++started) contexts[started].start(stacks + started * STACK, live);
    for (unsigned i = 0; i < threads; ++i) states[i] = READY, turns[i] = 0;
    apart = false;
    unsigned warps = (threads + 31) / 32;
    do {
        for (unsigned k = 0; k < warps; ++k) {
            unsigned w = 32 * (falling ? warps - 1 - k : k);
            run_warp(w, w + 32 < threads ? w + 32 : threads, falling);
        }
    } while (release(0, threads, AT_BLOCK));
    for (unsigned i = 0; i < threads; ++i) {
        if (states[i] == DONE) continue;
        // A deadlock: some wait where the others never arrive. The next launch starts with new fibers.
        started = 0;
        return false;
    }
    return !apart;
}

template <typename F>
bool launch(unsigned blocks, unsigned threads, bool falling, F&& body) {
    gridDim.x = blocks;
    blockDim.x = threads;
    work = [](void* f) { (*(std::remove_reference_t<F>*)f)(); };
    work_of = (void*)&body;
    if (!stacks) stacks = (char*)aligned_alloc(64, MOST * STACK);
    watch_launch(stacks, MOST * STACK, &__bss_start, &_end);
    for (unsigned b = 0; b < blocks; ++b) {
        blockIdx.x = falling ? blocks - 1 - b : b;
        watch_block(blockIdx.x);
        if (!run_block(threads, falling)) return false;
    }
    return true;
}

// A kernel's arguments as CUDA's driver takes them: one pointer to each value.
template <typename... A, size_t... I>
bool call(void (*kernel)(A...), unsigned blocks, unsigned threads, bool falling, void** arguments, std::index_sequence<I...>) {
    std::tuple<std::remove_cv_t<A>...> values(*(std::remove_cv_t<A>*)arguments[I]...);
    return launch(blocks, threads, falling, [&] { kernel(std::get<I>(values)...); });
}

template <typename... A>
bool call(void (*kernel)(A...), unsigned blocks, unsigned threads, bool falling, void** arguments) {
    return call(kernel, blocks, threads, falling, arguments, std::index_sequence_for<A...>());
}

// The size in bytes of each kernel parameter, then 0: the driver reads that many, whatever it is passed.
template <typename... A>
const unsigned* sizes(void (*)(A...)) {
    static const unsigned found[] = {sizeof(A)..., 0};
    return found;
}

// Each thread of a warp may read what the others stored here after all have arrived. Two buffers alternate: a thread that
// writes the first one again knows that all others have left it. All arrive, so all must be in the mask.
template <typename T>
uint64_t* exchange(T v, unsigned mask) {
    static_assert(sizeof(T) <= 8);
    apart |= mask != 0xffffffff;
    unsigned me = threadIdx.x;
    uint64_t* room = slots[turns[me] ^= 1];
    std::memcpy(&room[me], &v, sizeof v);
    stop(AT_WARP);
    return room;
}

}  // namespace emulator

static void __syncthreads() { emulator::stop(emulator::AT_BLOCK); }
static void __syncwarp(unsigned mask = 0xffffffff) {
    emulator::ordering[threadIdx.x / 32] = true;
    emulator::exchange(0, mask);
}
static void __threadfence() { watch_fence(); }
static void __threadfence_system() { watch_fence(); }

template <typename T>
T __shfl_sync(unsigned mask, T v, int lane) {
    uint64_t* room = emulator::exchange(v, mask);
    std::memcpy(&v, &room[(threadIdx.x & ~31u) + lane], sizeof v);
    return v;
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T v, int other) { return __shfl_sync(mask, v, (threadIdx.x & 31) ^ other); }

static unsigned __ballot_sync(unsigned mask, int vote) {
    uint64_t* room = emulator::exchange((uint64_t)(vote != 0), mask);
    unsigned found = 0;
    for (unsigned i = 0; i < 32; ++i) found |= (unsigned)(room[(threadIdx.x & ~31u) + i] == 1) << i;
    return found;
}

__attribute__((no_sanitize("thread"))) static unsigned atomicInc(unsigned* at, unsigned last) {
    watch_arrive();
    unsigned before = *at;
    *at = before >= last ? 0 : before + 1;
    return before;
}

template <typename T>
__attribute__((no_sanitize("thread"))) T atomicCAS(T* at, T expected, T made) {
    T before = *at;
    if (before == expected) *at = made;
    return before;
}

static int __ffs(unsigned v) { return __builtin_ffs((int)v); }
static int __popc(unsigned v) { return __builtin_popcount(v); }
static float __uint_as_float(unsigned bits) { float f; std::memcpy(&f, &bits, 4); return f; }
static unsigned __float_as_uint(float f) { unsigned bits; std::memcpy(&bits, &f, 4); return bits; }
static float half_to_float(unsigned short bits) { _Float16 h; std::memcpy(&h, &bits, 2); return (float)h; }
static unsigned short float_to_half(float f) {
    _Float16 h = (_Float16)f;
    unsigned short bits;
    std::memcpy(&bits, &h, 2);
    return bits;
}
static unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
// No part of a fused multiply-add, which the compiler makes of other products and sums if it is told to: it does not see where
// an operand comes from, and where a result goes.
template <typename T>
static T unseen(T x) {
#if defined(__x86_64__)
    asm("" : "+x"(x));
#else
    asm("" : "+w"(x));
#endif
    return x;
}
static float __fmul_rn(float a, float b) { return unseen(unseen(a) * unseen(b)); }
static float __fadd_rn(float a, float b) { return unseen(unseen(a) + unseen(b)); }
static double __dmul_rn(double a, double b) { return unseen(unseen(a) * unseen(b)); }
static double __dadd_rn(double a, double b) { return unseen(unseen(a) + unseen(b)); }
