// Rows of which a team of threads holds a part in registers, so that a row that fits is read once.

#include "common.cuh"

// A thread's share of a part of a row: accesses to N neighbors each, all teams' accesses side by side. `left` is what there is of
// the row from the part's start on, and may be more than the part.
template <typename T, int N, int accesses = N == 4 ? 8 : 4>
struct Part {
    typedef WIDE(T) A;
    static constexpr int neighbors = N, count = accesses * N;
    A v[count];

    // The elements of a part.
    static __device__ __forceinline__ int span(const Team& team) { return count * team.lanes; }

    // Calls f with each access's place in `v` and in the part.
    template <typename F>
    static __device__ __forceinline__ void each(i64 left, const Team& team, F f) {
        int end = left < span(team) ? (int)left : span(team);
#pragma unroll
        for (int k = 0; k < accesses; ++k) {
            int at = (k * team.lanes + team.rank) * N;
            if (at < end) f(k * N, at);
        }
    }

    // Elements are `step` apart, which is 1 if N is more than 1. What lies beyond the row is `rest`.
    __device__ __forceinline__ void load(const T* x, i64 step, i64 left, const Team& team, A rest) {
#pragma unroll
        for (int k = 0; k < count; ++k) v[k] = rest;
        each(left, team, [&](int k, int at) {
            Pack<T, N> found;
            if (N == 1) found.of[0] = x[at * step];
            else found = *(const Pack<T, N>*)(x + at);
#pragma unroll
            for (int j = 0; j < N; ++j) v[k + j] = (A)found.of[j];
        });
    }

    // Stores f of each element's place in `v` and in the part.
    template <typename F>
    static __device__ __forceinline__ void store(T* out, i64 step, i64 left, const Team& team, F f) {
        each(left, team, [&](int k, int at) {
            Pack<T, N> made;
#pragma unroll
            for (int j = 0; j < N; ++j) made.of[j] = (T)f(k + j, at + j);
            if (N == 1) out[at * step] = made.of[0];
            else *(Pack<T, N>*)(out + at) = made;
        });
    }
};
