// Finds races in the kernels that emulator.h runs.
//
// Two accesses of one byte race if they are not both reads and nothing orders them. Within a block a barrier does, within a warp
// also __syncwarp(); shuffles do not. Blocks are ordered only where all but the last to arrive write, fence and count
// themselves, and the last one counts itself, fences and reads; a barrier makes one thread's fence hold for the others. For each
// byte it is enough to remember the last write and the reads since, as one read of "several threads" if they differ (Flanagan and
// Freund, FastTrack, PLDI 2009). Shared memory must have been written before it is read.

#include <unordered_map>

#include "watch.h"

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

// A block's arrival: which thread has counted the block, after how many barriers, and all threads' fences until then.
struct Arrival {
    uint32_t launch, barriers;
    uint16_t thread;
    uint32_t fences[THREADS];
};

STATE std::unordered_map<uint64_t, Byte*> pages;
STATE std::unordered_map<uint32_t, Arrival> arrivals;
STATE uint64_t near_page[64];
STATE Byte* near_bytes[64];
STATE uint32_t launch, barriers, syncs[32];
// One more than the number of barriers before a thread's last fence.
STATE uint32_t fences[THREADS];
STATE char found[400], text[sizeof found];

// Global memory that nobody had written, with a flag for each byte that has been written since.
struct Blank {
    Range range;
    unsigned char* written;
};
STATE Blank blanks[64];
STATE int blank_count;

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
        // Fenced by who counted, and then by a barrier before who reads; or after the barrier by who reads.
        bool acquired = (fences[c.thread] > c.barriers && fences[c.thread] <= barriers) || (
            fences[thread] > c.barriers + (thread == c.thread ? 0 : 1));
        return released && acquired;
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

void on_access(uint64_t at, uint64_t nbytes, bool writes, uint32_t code) {
    uint16_t warp = thread / 32;
    Access now{launch, block, barriers, syncs[warp], code, thread, warp};
    // A single byte may be g++'s own: whether a static variable was initialized.
    bool must_be_written = shared.has(at) && nbytes > 1;
    const Blank* blank = nullptr;
    for (int k = 0; k < blank_count && !blank; ++k)
        if (blanks[k].range.has(at)) blank = &blanks[k];
    for (; nbytes; --nbytes, ++at) {
        if (blank && blank->range.has(at)) {
            unsigned char& written = blank->written[at - blank->range.first];
            if (writes) written = 1;
            else if (!written) report("a read of what was not written", Access{}, at, code);
        }
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

void on_launch() {
    ++launch;
    // All that came before is ordered.
    if (pages.size() > MOST_PAGES) {
        for (auto& page : pages) delete[] page.second;
        pages.clear();
        std::memset(near_bytes, 0, sizeof near_bytes);
    }
}
void on_block() {
    barriers = 0;
    std::memset(syncs, 0, sizeof syncs);
    std::memset(fences, 0, sizeof fences);
}
void on_barrier() { ++barriers; }
void on_sync(unsigned warp) { ++syncs[warp]; }
void on_fence() { fences[thread] = barriers + 1; }
void on_arrive() {
    Arrival& a = arrivals[block];
    a = {launch, barriers, thread};
    std::memcpy(a.fences, fences, sizeof fences);
    fences[thread] = 0;
}
const char* result() {
    std::memcpy(text, found, sizeof found);
    found[0] = 0;
    return text;
}

}  // namespace

// Of each launch, before it: the memory that nobody had written.
extern "C" __attribute__((visibility("default"))) void watch_blank(int count, const uint64_t* given) {
    blank_count = count;
    for (int k = 0; k < count; ++k) blanks[k] = {{given[3 * k], given[3 * k] + given[3 * k + 1]}, (unsigned char*)given[3 * k + 2]};
}
