// Counts the traffic of the kernels that emulator.h runs, as a GPU would cause it.
//
// The n-th accesses of a warp's threads by the same instruction are one request. In global memory it moves whole sectors of 32
// bytes; in shared memory it takes as many wavefronts as a bank of 4 bytes has different words to give, or at least as many as
// 128 bytes each need. Words that several threads ask for are moved once.

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "watch.h"

namespace {

constexpr uint64_t SECTOR = 32;

struct Place {
    uint64_t at;
    uint32_t code;
    uint8_t nbytes;
    bool writes;
};
struct Request {
    std::vector<uint64_t> places;
    uint8_t nbytes;
    bool writes;
};
// In bytes: what threads asked for, what was moved, and in shared memory what would be moved without conflicts.
struct Counts {
    uint64_t read = 0, written = 0, read_sectors = 0, written_sectors = 0, shared = 0, shared_needed = 0;
};
struct Wasted {
    uint64_t moved = 0, asked = 0;
};

STATE std::vector<Place> places[THREADS];
STATE std::unordered_map<uint32_t, Wasted> by_code;
STATE std::unordered_set<uint64_t> sectors_read, sectors_written;
STATE Counts counts;
STATE char text[1000];

void count(uint32_t code, const Request& r) {
    bool in_shared = shared.has(r.places[0]);
    uint64_t unit = in_shared ? 4 : SECTOR, bytes = 0, last = 0;
    std::vector<uint64_t> units, sorted = r.places;
    std::sort(sorted.begin(), sorted.end());
    for (uint64_t at : sorted) {
        bytes += at + r.nbytes - std::min(std::max(at, last), at + r.nbytes);
        last = std::max(last, at + r.nbytes);
        for (uint64_t u = at / unit; u <= (at + r.nbytes - 1) / unit; ++u)
            if (units.empty() || units.back() < u) units.push_back(u);
    }
    Wasted& w = by_code[code];
    if (!in_shared) {
        (r.writes ? counts.written : counts.read) += bytes;
        (r.writes ? counts.written_sectors : counts.read_sectors) += units.size() * SECTOR;
        for (uint64_t u : units) (r.writes ? sectors_written : sectors_read).insert(u);
        w.moved += units.size() * SECTOR;
        w.asked += bytes;
        return;
    }
    // Accesses of 8 and 16 bytes are made by a half and a quarter of the warp at a time.
    uint64_t some = std::max<uint64_t>(1, 32 / std::max(1, r.nbytes / 4)), moved = 0, needed = 0;
    for (uint64_t first = 0; first < r.places.size(); first += some) {
        uint64_t banks[32] = {}, words = 0;
        std::unordered_set<uint64_t> seen;
        for (uint64_t k = first; k < std::min<uint64_t>(first + some, r.places.size()); ++k)
            for (uint64_t u = r.places[k] / 4; u <= (r.places[k] + r.nbytes - 1) / 4; ++u)
                if (seen.insert(u).second) ++banks[u % 32], ++words;
        moved += *std::max_element(banks, banks + 32);
        needed += (words + 31) / 32;
    }
    counts.shared += moved * 128;
    counts.shared_needed += needed * 128;
    w.moved += moved * 128;
    w.asked += needed * 128;
}

void end_block() {
    for (unsigned warp = 0; warp < THREADS / 32; ++warp) {
        std::unordered_map<uint64_t, Request> requests;
        for (unsigned t = warp * 32; t < warp * 32 + 32; ++t) {
            std::unordered_map<uint32_t, uint32_t> turns;
            for (const Place& p : places[t]) {
                Request& r = requests[(uint64_t)p.code << 32 | turns[p.code]++];
                r.places.push_back(p.at);
                r.nbytes = p.nbytes;
                r.writes = p.writes;
            }
            places[t].clear();
        }
        for (auto& request : requests) count(request.first >> 32, request.second);
    }
}

void on_access(uint64_t at, uint64_t nbytes, bool writes, uint32_t code) {
    for (; nbytes; nbytes -= std::min<uint64_t>(nbytes, 16), at += 16, ++code)
        places[thread].push_back({at, code, (uint8_t)std::min<uint64_t>(nbytes, 16), writes});
}
void on_launch() {}
void on_block() { end_block(); }
void on_barrier() {}
void on_sync(unsigned) {}
void on_fence() {}
void on_arrive() {}

const char* result() {
    end_block();
    int n = std::snprintf(text, sizeof text, "{\"read\": %llu, \"written\": %llu, \"read_sectors\": %llu, \"written_sectors\": %llu, "
        "\"sectors_once\": %llu, \"shared\": %llu, \"shared_needed\": %llu, \"worst\": [",
        (unsigned long long)counts.read, (unsigned long long)counts.written, (unsigned long long)counts.read_sectors,
        (unsigned long long)counts.written_sectors, (unsigned long long)(SECTOR * (sectors_read.size() + sectors_written.size())),
        (unsigned long long)counts.shared, (unsigned long long)counts.shared_needed);
    std::vector<std::pair<uint64_t, uint32_t>> wasted;
    for (auto& w : by_code) wasted.push_back({w.second.moved - std::min(w.second.asked, w.second.moved), w.first});
    std::sort(wasted.rbegin(), wasted.rend());
    const char* comma = "";
    for (unsigned k = 0; k < wasted.size() && k < 4 && wasted[k].first; ++k, comma = ", ") {
        const Wasted& w = by_code[wasted[k].second];
        n += std::snprintf(text + n, sizeof text - n, "%s[\" at %#x,\", %llu, %llu]", comma, wasted[k].second,
                           (unsigned long long)w.moved, (unsigned long long)w.asked);
    }
    std::snprintf(text + n, sizeof text - n, "]}");
    counts = {};
    by_code.clear();
    sectors_read.clear();
    sectors_written.clear();
    return text;
}

}  // namespace
