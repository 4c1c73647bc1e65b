// Writes at many positions along a long dimension, in time linear in the number of positions and in the length: the positions are
// sorted, so that those of one place are adjacent. Satish, Harris and Garland, Designing Efficient Sorting Algorithms for Manycore
// GPUs, 2009 (the radix sort). For few positions or a short dimension index.cu has kernels that take one launch.
//
// Traffic in bytes, n positions of p, with k elements of s each: for every 8 bits of the length the sort writes 4 n and reads
// n (2 p + 8), of which 2 n p lie scattered from the second time on; sums reads n (k s + p) and writes each place once. Sums that
// go on from one chunk of positions to the next move up to n k / 16 more. Sums are computed, and the last of several writes is
// chosen, in the order of the positions, without atomics. A position has one element in each row of a layout, whose tensors 0, 1
// and 2 are the index, the values and x, and whose folded dimensions are those of the positions.

#include "common.cuh"
#include "index.cuh"

__device__ __forceinline__ i64 least(i64 a, i64 b) { return a < b ? a : b; }

template <typename I>
struct Places {
    const I* index;
    i64 length, stride, back, skipped;

    // The position number k, or -1 if nothing is written there.
    __device__ __forceinline__ i64 place(const Layout& l, i64 k, i64 (&where)[3]) const {
        locate(l.folded, k, where);
        i64 p = inside(index[where[0]], length, back);
        return p == skipped ? -1 : p;
    }
    // Where in x it leads to, without the offset of the row, or -1; and where its values are.
    __device__ __forceinline__ i64 target(const Layout& l, i64 k, i64& from) const {
        i64 where[3], p = place(l, k, where);
        from = where[1];
        return p < 0 ? -1 : where[2] + p * stride;
    }
};

// The parameters of a kernel that make up its Places.
#define PLACES(I) const I *index, i64 length, i64 stride, i64 back, i64 skipped

// -- the sort: for each digit, from the lowest, tally and deal ---------------------------------------------------------------

// The digit of the i-th position in the order so far, and its number k. Without an order k is i. Skipped positions come last.
template <typename I>
__device__ __forceinline__ u32 digit_of(const Places<I>& places, const Layout& l, const u32* order, i64 i, int shift, u32& k) {
    i64 where[3];
    k = order ? order[i] : (u32)i;
    i64 p = places.place(l, k, where);
    return (u32)((u64)(p < 0 ? places.length : p) >> shift) & 255;
}

// Which threads of the warp have the same digit.
__device__ __forceinline__ u32 alike(bool some, u32 digit) {
    u32 found = __ballot_sync(0xffffffffu, some);
#pragma unroll
    for (int bit = 0; bit < 8; ++bit) {
        u32 set = __ballot_sync(0xffffffffu, digit >> bit & 1);
        found &= digit >> bit & 1 ? set : ~set;
    }
    return found;
}

// table[block, digit] is how many positions of the block's `share` have the digit.
template <typename I>
__global__ void tally(const u32* order, u32* table, const __grid_constant__ Layout l, PLACES(I), i64 share, int shift) {
    Places<I> places = {index, length, stride, back, skipped};
    __shared__ u32 counts[8][256];
    u32 total = 0, k;
    for (int w = 0; w < 8; ++w) counts[w][threadIdx.x] = 0;
    __syncthreads();
    i64 end = least((blockIdx.x + 1) * share, l.width);
    for (i64 start = blockIdx.x * share; start < end; start += 256) {
        i64 i = start + threadIdx.x;
        u32 digit = i < end ? digit_of(places, l, order, i, shift, k) : 0, same = alike(i < end, digit);
        if (i < end && !(same & ((1u << (threadIdx.x & 31)) - 1))) counts[threadIdx.x >> 5][digit] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    for (int w = 0; w < 8; ++w) total += counts[w][threadIdx.x];
    table[blockIdx.x * 256 + threadIdx.x] = total;
}

// Deals the positions out by digit, in their present order where digits are equal.
template <typename I>
__global__ void deal(const u32* order, u32* out, const u32* table, const __grid_constant__ Layout l, PLACES(I), i64 share,
                     int shift) {
    Places<I> places = {index, length, stride, back, skipped};
    __shared__ u32 next[256], hits[8][256];
    int t = threadIdx.x, warp = t >> 5;
    // Thread t finds where the block's first position with digit t goes: behind those of smaller digits, and of blocks before.
    u32 all = 0, before = 0, k = 0;
#pragma unroll 8
    for (u32 b = 0; b < gridDim.x; ++b) {
        u32 count = table[b * 256 + t];
        all += count;
        if (b < blockIdx.x) before += count;
    }
    next[t] = all;
    for (int step = 1; step < 256; step *= 2) {
        __syncthreads();
        u32 lower = t < step ? 0 : next[t - step];
        __syncthreads();
        next[t] += lower;
    }
    u32 free = next[t] + before - all;

    i64 end = least((blockIdx.x + 1) * share, l.width);
    for (i64 start = blockIdx.x * share; start < end; start += 256) {
        i64 i = start + t;
        u32 digit = i < end ? digit_of(places, l, order, i, shift, k) : 0, same = alike(i < end, digit);
        u32 earlier = same & ((1u << (t & 31)) - 1);
        for (int w = 0; w < 8; ++w) hits[w][t] = 0;
        __syncthreads();
        if (i < end && !earlier) hits[warp][digit] = __popc(same);
        __syncthreads();
        for (int w = 0; w < 8; ++w) {
            u32 count = hits[w][t];
            hits[w][t] = free;
            free += count;
        }
        __syncthreads();
        if (i < end) out[hits[warp][digit] + __popc(earlier)] = k;
        __syncthreads();
    }
}

// -- what is done at the sorted positions ------------------------------------------------------------------------------------

// A warp takes a chunk of RUN sorted positions, and up to 128 rows.
struct Unit {
    i64 chunk, first, end, row, rows;
    __device__ __forceinline__ Unit(const Layout& l, i64 unit, int run) {
        i64 pieces = (l.rows + 127) / 128;
        chunk = unit / pieces;
        first = chunk * run;
        end = least(first + run, l.width);
        row = (unit - chunk * pieces) * 128 + (threadIdx.x & 31);
        rows = least(row - (threadIdx.x & 31) + 128, l.rows);
    }
};
#define EACH_UNIT(unit, n) for (i64 unit = (i64)blockIdx.x * 8 + (threadIdx.x >> 5); unit < (n); unit += (i64)gridDim.x * 8)

// Where a chunk's positions lead to, with one before and one behind it, and where their values are. Computed once for all rows.
template <int RUN>
struct Targets {
    i64 to[RUN + 2], from[RUN + 2];

    template <typename I>
    __device__ __forceinline__ void find(const Places<I>& places, const Layout& l, const u32* order, const Unit& u) {
        __syncwarp();  // until all threads are done with the last chunk's
        for (int k = threadIdx.x & 31; k < RUN + 2; k += 32) {
            i64 i = u.first - 1 + k;
            to[k] = -1;
            if (i >= 0 && i < l.width) to[k] = places.target(l, order[i], from[k]);
        }
        __syncwarp();
    }
};

template <typename T, bool FRESH>
__device__ __forceinline__ void store(T* x, WIDE(T) total) {
    *x = (T)(FRESH ? total : (WIDE(T))*x + total);
}

// What becomes of a sum over a run of positions with the same target: it is added to x, or written to an x of zeros if FRESH. Of
// a sum that is not whole, parts[chunk, 0, row] is what goes on from the chunk before, and parts[chunk, 1, row] what begins here
// and goes on in the next.
template <typename T, bool FRESH>
__device__ __forceinline__ void finish(T* x, WIDE(T) total, bool begun, bool goes_on, WIDE(T)* part, i64 rows) {
    if (begun) *part = total;
    else if (goes_on) part[rows] = total;
    else store<T, FRESH>(x, total);
}

// Adds a chunk's values in one row, in a thread.
template <typename T, bool FRESH>
__device__ __forceinline__ void sum_row(T* x, const T* values, WIDE(T)* part, const i64* goal, const i64* from, int count,
                                        i64 rows) {
    i64 to = goal[0];
    bool begun = to >= 0 && goal[-1] == to;
    WIDE(T) total = 0;
    for (int i = 0; i < count && to >= 0; i += 8) {
        // Eight loads in flight: a store between them would hold the later ones back.
        T next[8];
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < count && goal[i + j] >= 0) next[j] = values[from[i + j]];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (i + j >= count || to < 0) break;
            if (goal[i + j] != to) {
                finish<T, FRESH>(x + to, total, begun, false, part, rows);
                to = goal[i + j];
                begun = false;
                total = 0;
            }
            if (to >= 0) total += (WIDE(T))next[j];
        }
    }
    // Skipped positions are behind all others.
    if (to >= 0) finish<T, FRESH>(x + to, total, begun, goal[count] == to, part, rows);
}

// The same in a warp, for a few rows: each thread takes every 32nd position, and equal targets are next to one another.
template <typename T, bool FRESH>
__device__ __forceinline__ void sum_lanes(T* x, const T* values, WIDE(T)* part, const i64* goal, const i64* from, int count,
                                          i64 rows) {
    typedef WIDE(T) A;
    int lane = threadIdx.x & 31;
    A carried = 0;
    for (int start = 0; start < count; start += 32) {
        int k = start + lane;
        i64 to = k < count ? goal[k] : -1;
        A v = to >= 0 ? (A)values[from[k]] : (A)0;
        if (!lane && start && goal[start - 1] == to) v = carried + v;
        for (int step = 1; step < 32; step *= 2) {
            A other = __shfl_sync(0xffffffffu, v, lane < step ? lane : lane - step);
            if (lane >= step && k < count && goal[k - step] == to) v = other + v;
        }
        carried = __shfl_sync(0xffffffffu, v, 31);
        bool last = k == count - 1;
        if (to >= 0 && (last || goal[k + 1] != to))
            finish<T, FRESH>(x + to, v, goal[-1] == to, last && goal[count] == to, part, rows);
    }
}

// Adds the values of a chunk of positions in up to 128 rows.
template <typename T, typename I, bool FRESH, int RUN>
__global__ void sums(T* x, const T* values, const u32* order, WIDE(T)* parts, const __grid_constant__ Layout l, PLACES(I),
                     i64 units) {
    __shared__ Targets<RUN> found[8];
    Places<I> places = {index, length, stride, back, skipped};
    Targets<RUN>& targets = found[threadIdx.x >> 5];
    EACH_UNIT(unit, units) {
        Unit u(l, unit, RUN);
        targets.find(places, l, order, u);
        int count = (int)(u.end - u.first);
        bool few = l.rows < 32;
        for (i64 r = few ? 0 : u.row; r < u.rows; r += few ? 1 : 32) {
            i64 here[3];
            locate(l.kept, r, here);
            WIDE(T)* part = parts + 2 * u.chunk * l.rows + r;
            if (few) sum_lanes<T, FRESH>(x + here[2], values + here[1], part, targets.to + 1, targets.from + 1, count, l.rows);
            else sum_row<T, FRESH>(x + here[2], values + here[1], part, targets.to + 1, targets.from + 1, count, l.rows);
        }
    }
}

// Puts the parts of a sum together, in their order. The warp whose chunk the sum begins in does it.
template <typename T, typename I, bool FRESH, int RUN>
__global__ void joins(T* x, const u32* order, const WIDE(T)* parts, const __grid_constant__ Layout l, PLACES(I), i64 units) {
    Places<I> places = {index, length, stride, back, skipped};
    EACH_UNIT(unit, units) {
        Unit u(l, unit, RUN);
        i64 from, here[3], to = u.end < l.width ? places.target(l, order[u.end], from) : -1;
        if (to < 0 || places.target(l, order[u.end - 1], from) != to) continue;
        if (u.first && places.target(l, order[u.first - 1], from) == to) continue;
        // The last chunk that begins within the sum.
        i64 last = u.chunk + 1, beyond = (l.width + RUN - 1) / RUN;
        while (beyond - last > 1) {
            i64 middle = (last + beyond) / 2;
            if (places.target(l, order[middle * RUN], from) == to) last = middle;
            else beyond = middle;
        }
        for (i64 r = u.row; r < u.rows; r += 32) {
            const WIDE(T)* part = parts + r;
            WIDE(T) total = part[(2 * u.chunk + 1) * l.rows];
#pragma unroll 8
            for (i64 k = u.chunk + 1; k <= last; ++k) total += part[2 * k * l.rows];
            locate(l.kept, r, here);
            store<T, FRESH>(x + to + here[2], total);
        }
    }
}

// Of the positions that lead to the same place, the last one writes its values there.
template <typename T, typename V, typename I, int RUN>
__global__ void writes(T* x, const V* values, const u32* order, const __grid_constant__ Layout l, PLACES(I), i64 units) {
    __shared__ Targets<RUN> found[8];
    Places<I> places = {index, length, stride, back, skipped};
    Targets<RUN>& targets = found[threadIdx.x >> 5];
    EACH_UNIT(unit, units) {
        Unit u(l, unit, RUN);
        targets.find(places, l, order, u);
        // The warp's threads share the chunk's elements, since a layout may have a single row.
        int lane = threadIdx.x & 31, count = (int)(u.end - u.first), many = (int)(u.rows - u.row) + lane;
#pragma unroll 4
        for (int e = lane; e < many * count; e += 32) {
            int k = 1 + e / many;
            if (targets.to[k] < 0 || targets.to[k] == targets.to[k + 1]) continue;
            i64 here[3];
            locate(l.kept, u.row - lane + e % many, here);
            x[targets.to[k] + here[2]] = stored<T>((WIDE(V))values[targets.from[k] + here[1]]);
        }
    }
}
