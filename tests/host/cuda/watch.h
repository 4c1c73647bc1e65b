// For what looks at every access of the kernels that emulator.h runs: g++ calls these functions if told -fsanitize=thread.

#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

// As in emulator.h: variables that are not shared memory.
#define STATE static __attribute__((section("emulator_state")))
extern "C" char __start_emulator_state[] __attribute__((visibility("hidden"))),
    __stop_emulator_state[] __attribute__((visibility("hidden")));

namespace {

constexpr unsigned THREADS = 1024;

struct Range {
    uint64_t first, last;
    bool has(uint64_t at) const { return at >= first && at < last; }
};
STATE Range shared, ignored[3];
STATE uint64_t base;
STATE uint32_t block;
// The running thread; THREADS if none is.
STATE uint16_t thread = THREADS;

// Defined by what looks. `code` is the address in the library of the instruction behind an access.
void on_access(uint64_t at, uint64_t nbytes, bool writes, uint32_t code);
void on_launch();
void on_block();
void on_barrier();
void on_sync(unsigned warp);
void on_fence();
void on_arrive();
const char* result();

void access(void* where, uint64_t nbytes, bool writes, void* caller) {
    uint64_t at = (uint64_t)where;
    if (thread == THREADS) return;
    for (const Range& r : ignored)
        if (r.has(at)) return;
    on_access(at, nbytes, writes, (uint64_t)caller - base);
}

}  // namespace

// What emulator.h tells: the running thread, barriers that all have reached, fences and arrivals.
extern "C" {
void watch_launch(void* stacks, uint64_t nbytes, void* first, void* end) {
    Dl_info info;
    dladdr((void*)watch_launch, &info);
    base = (uint64_t)info.dli_fbase;
    ignored[0] = {(uint64_t)stacks, (uint64_t)stacks + nbytes};
    ignored[1] = {(uint64_t)__start_emulator_state, (uint64_t)__stop_emulator_state};
    // The launch's own stack has the arguments, which are in constant memory on a GPU.
    uint64_t here = (uint64_t)&info;
    ignored[2] = {here - (64 << 10), here + (64 << 10)};
    shared = {(uint64_t)first, (uint64_t)end};
    on_launch();
}
void watch_block(unsigned b) {
    block = b;
    on_block();
}
void watch_thread(unsigned t) { thread = t; }
void watch_barrier() { on_barrier(); }
void watch_sync(unsigned warp) { on_sync(warp); }
void watch_fence() { on_fence(); }
void watch_arrive() { on_arrive(); }
// What was found since the last call.
__attribute__((visibility("default"))) const char* watch_result() { return result(); }

void __tsan_init() {}
#define ACCESS(name, nbytes, writes) \
    void __tsan_##name(void* at) { access(at, nbytes, writes, __builtin_return_address(0)); }
ACCESS(read1, 1, false) ACCESS(read2, 2, false) ACCESS(read4, 4, false) ACCESS(read8, 8, false) ACCESS(read16, 16, false)
ACCESS(write1, 1, true) ACCESS(write2, 2, true) ACCESS(write4, 4, true) ACCESS(write8, 8, true) ACCESS(write16, 16, true)
ACCESS(unaligned_read2, 2, false) ACCESS(unaligned_read4, 4, false) ACCESS(unaligned_read8, 8, false)
ACCESS(unaligned_read16, 16, false) ACCESS(unaligned_write2, 2, true) ACCESS(unaligned_write4, 4, true)
ACCESS(unaligned_write8, 8, true) ACCESS(unaligned_write16, 16, true)
void __tsan_read_range(void* at, unsigned long n) { access(at, n, false, __builtin_return_address(0)); }
void __tsan_write_range(void* at, unsigned long n) { access(at, n, true, __builtin_return_address(0)); }
}
