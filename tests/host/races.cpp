// Finds races in the kernels that emulator.h runs: g++ calls these functions at every access if told -fsanitize=thread.
//
// Two accesses of one byte race if they are not both reads and nothing orders them. Within a block a barrier does, within a warp
// also __syncwarp(); shuffles do not. Blocks are ordered only where all but the last to arrive write, fence and count
// themselves, and the last one counts itself, fences and reads. For each byte it is enough to remember the last write and the reads since,
// as one read of "several threads" if they differ (Flanagan and Freund, FastTrack, PLDI 2009). Shared memory must have been
// written before it is read.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <unordered_map>

// As in emulator.h: variables that are not shared memory.
#define STATE static __attribute__((section("emulator_state")))
extern "C" char __start_emulator_state[] __attribute__((visibility("hidden"))),
    __stop_emulator_state[] __attribute__((visibility("hidden")));

namespace {

constexpr uint16_t SEVERAL = 0xffff;
constexpr uint32_t BLOCKS = 0xffffffff;
constexpr uint64_t PAGE = 4096, MOST_PAGES = 2000;

struct Access {
    uint32_t launch, block, barriers, syncs, code;
    uint16_t thread, warp;
};
struct Byte {
    Access write, read;
};
struct Range {
    uint64_t first, last;
    bool has(uint64_t at) const { return at >= first && at < last; }
};

// A block's arrival: which thread has counted the block, after how many barriers, and all threads' fences until then.
struct Arrival {
    uint32_t launch, barriers;
    uint16_t thread;
    uint32_t fences[1024];
};

STATE std::unordered_map<uint64_t, Byte*> pages;
STATE std::unordered_map<uint32_t, Arrival> arrivals;
STATE uint64_t near_page[64], base;
STATE Byte* near_bytes[64];
STATE Range shared, ignored[2];
STATE uint32_t launch, block, barriers, syncs[32];
STATE uint16_t thread = SEVERAL;
// One more than the number of barriers before a thread's last fence.
STATE uint32_t fences[1024];
STATE char found[400], text[sizeof found];

Byte& shadow(uint64_t at) {
    uint64_t page = at / PAGE, k = page % 64;
    if (near_page[k] != page || !near_bytes[k]) {
        Byte*& bytes = pages[page];
        if (!bytes) bytes = new Byte[PAGE]();
        near_page[k] = page;
        near_bytes[k] = bytes;
    }
    return near_bytes[k][at % PAGE];
}

// Does everything in `a` happen before what the running thread does now?
bool before(const Access& a, uint64_t at) {
    if (a.launch != launch) return true;
    if (a.block != block) {
        if (shared.has(at)) return true;
        if (a.block == BLOCKS) return false;
        auto left = arrivals.find(a.block), came = arrivals.find(block);
        if (left == arrivals.end() || came == arrivals.end() || a.thread == SEVERAL) return false;
        const Arrival &l = left->second, &c = came->second;
        if (l.launch != launch || c.launch != launch) return false;
        // Fenced by who wrote, and then by a barrier before who counted; or after the barrier by who counted.
        bool released = l.fences[l.thread] > a.barriers + 1 || (
            l.fences[a.thread] > a.barriers && (a.barriers < l.barriers || a.thread == l.thread));
        return released && fences[thread] > c.barriers + (thread == c.thread ? 0 : 1);
    }
    return a.barriers < barriers || a.thread == thread || (a.warp == thread / 32 && a.syncs < syncs[thread / 32]);
}

void report(const char* what, const Access& first, uint64_t at, uint32_t code) {
    if (found[0]) return;
    auto name = [](char* text, uint32_t block, uint16_t thread) {
        int n = block == BLOCKS ? std::sprintf(text, "several blocks") : std::sprintf(text, "block %u, ", block);
        if (block == BLOCKS) return;
        thread == SEVERAL ? std::sprintf(text + n, "several threads") : std::sprintf(text + n, "thread %u", thread);
    };
    char one[64] = "nobody", other[64];
    if (first.launch) name(one, first.block, first.thread);
    name(other, block, thread);
    std::snprintf(found, sizeof found, "%s: %s at %#x, then %s at %#x, at address %#llx in %s", what, one, first.code, other,
                  code, (unsigned long long)at, shared.has(at) ? "shared memory" : "global memory");
}

void access(void* where, uint64_t nbytes, bool writes, void* caller) {
    uint64_t at = (uint64_t)where;
    if (thread == SEVERAL || ignored[0].has(at) || ignored[1].has(at)) return;
    uint32_t code = (uint64_t)caller - base;
    uint16_t warp = thread / 32;
    Access now{launch, block, barriers, syncs[warp], code, thread, warp};
    // A single byte may be g++'s own: whether a static variable was initialized.
    bool must_be_written = shared.has(at) && nbytes > 1;
    for (; nbytes; --nbytes, ++at) {
        Byte& b = shadow(at);
        if (!before(b.write, at)) report(writes ? "two writes race" : "a read races with a write", b.write, at, code);
        if (writes) {
            if (!before(b.read, at)) report("a write races with a read", b.read, at, code);
            b.write = now;
            b.read.launch = 0;
            continue;
        }
        if (must_be_written && (b.write.launch != launch || b.write.block != block))
            report("a read of what was not written", Access{}, at, code);
        Access& read = b.read;
        if (before(read, at)) {
            read = now;
        } else if (read.block != block) {
            read.block = BLOCKS;
        } else {
            read.thread = SEVERAL;
            if (read.warp != warp) read.warp = SEVERAL;
        }
    }
}

}  // namespace

// What emulator.h tells: the running thread (1024 and above: none), barriers that all have reached, fences and arrivals.
extern "C" {
void races_launch(void* stacks, uint64_t nbytes, void* first, void* end) {
    ++launch;
    // All that came before is ordered.
    if (pages.size() > MOST_PAGES) {
        for (auto& page : pages) delete[] page.second;
        pages.clear();
        std::memset(near_bytes, 0, sizeof near_bytes);
    }
    Dl_info info;
    dladdr((void*)races_launch, &info);
    base = (uint64_t)info.dli_fbase;
    ignored[0] = {(uint64_t)stacks, (uint64_t)stacks + nbytes};
    ignored[1] = {(uint64_t)__start_emulator_state, (uint64_t)__stop_emulator_state};
    shared = {(uint64_t)first, (uint64_t)end};
}
void races_block(unsigned b) {
    block = b;
    barriers = 0;
    std::memset(syncs, 0, sizeof syncs);
    std::memset(fences, 0, sizeof fences);
}
void races_thread(unsigned t) { thread = t < 1024 ? t : SEVERAL; }
void races_barrier() { ++barriers; }
void races_sync(unsigned warp) { ++syncs[warp]; }
void races_fence() { fences[thread] = barriers + 1; }
void races_arrive() {
    Arrival& a = arrivals[block];
    a = {launch, barriers, thread};
    std::memcpy(a.fences, fences, sizeof fences);
    fences[thread] = 0;
}

__attribute__((visibility("default"))) const char* races_found() {
    std::memcpy(text, found, sizeof found);
    found[0] = 0;
    return text;
}

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
