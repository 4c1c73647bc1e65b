// The elements of a channel in [samples, channels, inner], as the threads of the blocks that share it access them.

#include "common.cuh"

// Walks over the elements of a channel in [samples, channels, inner], 256 N further at each step, without a division a step.
template <int N>
struct Walk {
    i64 at, within, inner, rest, jump, turn;
    // From element `first` on, of `count`; 32-bit arithmetic if it suffices, which is much cheaper.
    __device__ __forceinline__ Walk(i64 first, i64 count, i64 inner, i64 channels) : inner(inner) {
        i64 sample = count < (i64)1 << 32 ? (i64)((u32)first / (u32)inner) : first / inner, step = inner * channels;
        int samples = inner > 256 * N ? 0 : 256 * N / (int)inner;
        within = first - sample * inner;
        at = sample * step + within;
        rest = 256 * N - samples * inner;
        jump = samples * step + rest;
        turn = step - inner;
    }
    __device__ __forceinline__ void next() {
        at += jump;
        within += rest;
        if (within >= inner) within -= inner, at += turn;
    }
};

// The first and one past the last element of a block's share of `count` elements; `parts` blocks work on a channel. A share begins
// at a multiple of any access.
__device__ __forceinline__ void share_of(i64 count, i64 part, int parts, i64& first, i64& last) {
    i64 each = ((count + parts - 1) / parts + 7) / 8 * 8;
    first = part * each < count ? part * each : count;
    last = first + each < count ? first + each : count;
}

// A thread's next accesses to a channel, N neighbors each: eight elements or more, of which `there` accesses exist.
template <int N>
struct Places {
    static constexpr int some = N == 1 ? 8 : N == 2 ? 4 : 16 / N, all = some * 256 * N;
    i64 at[some];
    int there;
    __device__ __forceinline__ Places(Walk<N>& walk, i64 left) : there(left >= all ? some : (int)(left + 256 * N - 1) / (256 * N)) {
#pragma unroll
        for (int k = 0; k < some; ++k) at[k] = walk.at, walk.next();
    }
    template <typename T>
    __device__ __forceinline__ void load(const T* x, Pack<T, N> (&found)[some]) const {
#pragma unroll
        for (int k = 0; k < some; ++k)
            if (k < there) found[k] = *(const Pack<T, N>*)(x + at[k]);
    }
};

// Loads the two numbers of each of a channel's shares (`parts`, at most 32) into adjacent shared memory.
template <typename A>
__device__ __forceinline__ void gather(const A* made, i64 c, i64 channels, int parts, A* pairs) {
    if (threadIdx.x < 2 * parts) pairs[threadIdx.x] = made[2 * ((threadIdx.x >> 1) * channels + c) + (threadIdx.x & 1)];
    __syncthreads();
}

// Rows of adjacent channels that a thread loads at once, with N neighbors of T in an access.
template <typename T, int N>
constexpr int rows_of() { return N == 1 ? (sizeof(T) > 4 ? 4 : 8) : N * sizeof(WIDE(T)) > 16 ? 2 : 4; }

// A block's part of adjacent channels, of [count, channels]: a warp reads 32 N of them in each of its rows, of which some are on
// their way at once.
template <int N>
struct Columns {
    i64 channels, part, c, first, last;
    __device__ __forceinline__ Columns(i64 count, i64 channels, int parts) : channels(channels) {
        i64 tiles = (channels + 32 * N - 1) / (32 * N);
        part = blockIdx.x / tiles;
        c = (blockIdx.x % tiles * 32 + (threadIdx.x & 31)) * N;
        share_of(count, part, parts, first, last);
        first += threadIdx.x >> 5;
        if (c >= channels) last = first;
    }
    // How many of the `some` rows `row`, `row` + 8 and so on exist.
    __device__ __forceinline__ int there(i64 row, int some) const {
        return last - row >= 8 * some ? some : (int)(last - row + 7) / 8;
    }
    // The last place of a walk: one back from there begins with what is still in cache.
    __device__ __forceinline__ i64 back(int some) const {
        return last > first ? first + (last - first - 1) / (8 * some) * (8 * some) : first - 1;
    }
};
