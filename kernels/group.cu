// Writes at many positions along a long dimension, in time linear in the number of positions and in the length: the positions are
// sorted, so that those of one place are adjacent. Satish, Harris and Garland, Designing Efficient Sorting Algorithms for Manycore
// GPUs, 2009 (the radix sort). For few positions or a short dimension index.cu has kernels that take one launch.
//
// Traffic in bytes, n positions of p, with k elements of s each: for every 9 bits of the length the sort writes 4 n and reads
// n (2 p + 8), of which 2 n p lie scattered from the second time on; sums reads n (k s + p) and writes each place once. Sums that
// go on from one chunk of positions to the next move up to n k / 16 more. Sums are computed, and the last of several writes is
// chosen, in the order of the positions, without atomics. A position has one element in each row of a layout, whose tensors 0, 1
// and 2 are the index, the values and x, and whose folded dimensions are those of the positions.

#include "common.cuh"
#include "places.cuh"

// A warp takes a chunk of RUN sorted positions, and a strip of rows; a thread N of them at once.
struct Unit {
    i64 chunk, first, end, row, rows;
    __device__ __forceinline__ Unit(const Layout& l, i64 unit, int run, int strip, int n) {
        i64 pieces = (l.rows + strip - 1) / strip;
        chunk = unit / pieces;
        first = chunk * run;
        end = least(first + run, l.width);
        row = (unit - chunk * pieces) * strip;
        rows = least(row + strip, l.rows);
        row += (threadIdx.x & 31) * n;
    }
};
#define EACH_UNIT(unit, n) for (i64 unit = (i64)blockIdx.x * 8 + (threadIdx.x >> 5); unit < (n); unit += (i64)gridDim.x * 8)

// Where a chunk's positions lead to, with one before and one behind it, and where their values are. Computed once for all rows.
template <int RUN>
struct Targets {
    i64 to[RUN + 2], from[RUN + 2];

    template <typename I>
    __device__ __forceinline__ void find(const Places<I>& places, const Layout& l, const u32* order, const Unit& u) {
        constexpr int EACH_LANE = (RUN + 2 + 31) / 32;
        u32 k[EACH_LANE];
        i64 where[EACH_LANE][3], i = u.first - 1 + (threadIdx.x & 31);
        I found[EACH_LANE];
        // Reads are in flight together.
#pragma unroll
        for (int j = 0; j < EACH_LANE; ++j) k[j] = i + j * 32 >= 0 && i + j * 32 < l.width ? order[i + j * 32] : 0;
#pragma unroll
        for (int j = 0; j < EACH_LANE; ++j) locate(l.folded, k[j], where[j]);
#pragma unroll
        for (int j = 0; j < EACH_LANE; ++j) found[j] = places.index[where[j][0]];
        __syncwarp();  // until all threads are done with the last chunk's
#pragma unroll
        for (int j = 0; j < EACH_LANE; ++j) {
            i64 p = places.place(found[j]);
            int at = (threadIdx.x & 31) + j * 32;
            if (at >= RUN + 2) break;
            to[at] = p < 0 || i + j * 32 < 0 || i + j * 32 >= l.width ? -1 : where[j][2] + p * places.stride;
            from[at] = where[j][1];
        }
        __syncwarp();
    }
};

// Sums in N neighboring rows.
template <typename A, int N>
struct Totals {
    // Parts of sums are accessed 16 bytes at once.
    static constexpr int M = N * sizeof(A) > 16 ? 16 / sizeof(A) : N;
    A of[N];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < N; ++n) of[n] = 0;
    }
    template <typename T>
    __device__ __forceinline__ void add(const Pack<T, N>& x) {
#pragma unroll
        for (int n = 0; n < N; ++n) of[n] += (A)x.of[n];
    }
    __device__ __forceinline__ void add_part(const A* parts, i64 at) {
#pragma unroll
        for (int n = 0; n < N; n += M) {
            Pack<A, M> some = ((const Pack<A, M>*)parts)[(at + n) / M];
#pragma unroll
            for (int m = 0; m < M; ++m) of[n + m] += some.of[m];
        }
    }
    __device__ __forceinline__ void keep(A* parts, i64 at) const {
#pragma unroll
        for (int n = 0; n < N; n += M) {
            Pack<A, M> some;
#pragma unroll
            for (int m = 0; m < M; ++m) some.of[m] = of[n + m];
            ((Pack<A, M>*)parts)[(at + n) / M] = some;
        }
    }
    // Added to what x was, or written to an x of zeros if FRESH.
    template <bool FRESH, typename T>
    __device__ __forceinline__ void store(T* x, const Pack<T, N>& was) const {
        Pack<T, N> made;
#pragma unroll
        for (int n = 0; n < N; ++n) made.of[n] = (T)(FRESH ? of[n] : (A)was.of[n] + of[n]);
        *(Pack<T, N>*)x = made;
    }
};

// Adds a chunk's values in N neighboring rows, in a thread. A sum over a run of positions with the same target is added to x. Of
// one that is not whole, parts[chunk, 0, row] is what goes on from the chunk before, and parts[chunk, 1, row] what begins here and
// goes on in the next.
template <typename T, bool FRESH, int N>
__device__ __forceinline__ void sum_row(T* x, const T* values, WIDE(T)* parts, i64 part, const i64* goal, const i64* from,
                                        int count, i64 rows) {
    typedef Pack<T, N> P;
    constexpr int AHEAD = FRESH || N <= 4 ? 8 : 4;  // more would leave room for one block
    bool begun = goal[-1] == goal[0];
    Totals<WIDE(T), N> total;
    total.clear();
    // Skipped positions are behind all others.
    for (int i = 0; i < count && goal[i] >= 0; i += AHEAD) {
        // Loads in flight, of x too where a sum ends: a store between them would hold the later ones back. Those of values have no
        // condition, since `from` leads to a value even where it is not added.
        P next[AHEAD], was[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) next[j] = *(const P*)(values + from[i + j]);
        if (!FRESH) {
#pragma unroll
            for (int j = 0; j < AHEAD; ++j)
                if (goal[i + j] >= 0 && goal[i + j + 1] != goal[i + j]) was[j] = *(const P*)(x + goal[i + j]);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            if (i + j >= count || goal[i + j] < 0) break;
            total.add(next[j]);
            bool goes_on = goal[i + j + 1] == goal[i + j];
            if (goes_on && i + j < count - 1) continue;
            if (begun) total.keep(parts, part);
            else if (goes_on) total.keep(parts, part + rows);
            else total.template store<FRESH>(x + goal[i + j], was[j]);
            begun = false;
            total.clear();
        }
    }
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
        if (to < 0 || !(last || goal[k + 1] != to)) continue;
        if (goal[-1] == to) *part = v;
        else if (last && goal[count] == to) part[rows] = v;
        else x[to] = (T)(FRESH ? v : (A)x[to] + v);
    }
}

// Adds the values of a chunk of positions in a strip of rows. With N = 1 rows may lie anywhere.
template <typename T, typename I, bool FRESH, int RUN, int N>
__global__ void sums(T* x, const T* values, const u32* order, WIDE(T)* parts, const __grid_constant__ Layout l, PLACES(I),
                     i64 units) {
    __shared__ Targets<RUN> found[8];
    Places<I> places = {index, length, stride, back, skipped};
    Targets<RUN>& targets = found[threadIdx.x >> 5];
    EACH_UNIT(unit, units) {
        Unit u(l, unit, RUN, N > 1 ? 32 * N : 128, N);
        targets.find(places, l, order, u);
        int count = (int)(u.end - u.first);
        bool few = N == 1 && l.rows < 32;
        for (i64 r = few ? 0 : u.row; r < u.rows; r += few ? 1 : 32 * N) {
            i64 here[3];
            locate(l.kept, r, here);
            i64 part = 2 * u.chunk * l.rows + r;
            if (few) sum_lanes<T, FRESH>(x + here[2], values + here[1], parts + part, targets.to + 1, targets.from + 1, count, l.rows);
            else sum_row<T, FRESH, N>(x + here[2], values + here[1], parts, part, targets.to + 1, targets.from + 1, count, l.rows);
        }
    }
}

// Puts the parts of a sum together, in their order. The warp whose chunk the sum begins in does it.
template <typename T, typename I, bool FRESH, int RUN, int N>
__global__ void joins(T* x, const u32* order, const WIDE(T)* parts, const __grid_constant__ Layout l, PLACES(I), i64 units) {
    Places<I> places = {index, length, stride, back, skipped};
    i64 chunks = (l.width + RUN - 1) / RUN;
    EACH_UNIT(unit, units) {
        Unit u(l, unit, RUN, 32 * N, N);
        if (u.end == l.width) continue;
        i64 to = places.target(l, order[u.end]), same = places.target(l, order[u.end - 1]), before = -1;
        if (u.first) before = places.target(l, order[u.first - 1]);
        if (to < 0 || same != to || before == to) continue;
        Totals<WIDE(T), N> total;
        total.clear();
        if (u.row < u.rows) total.add_part(parts, (2 * u.chunk + 1) * l.rows + u.row);
        // The chunks that begin within the sum follow: a warp looks at 32.
        for (i64 k = u.chunk + 1;; k += 32) {
            i64 own = k + (threadIdx.x & 31);
            int many = __popc(__ballot_sync(0xffffffffu, own < chunks && places.target(l, order[own * RUN]) == to));
            if (u.row < u.rows) {
#pragma unroll 8
                for (int j = 0; j < many; ++j) total.add_part(parts, 2 * (k + j) * l.rows + u.row);
            }
            if (many < 32) break;
        }
        if (u.row >= u.rows) continue;
        i64 here[3];
        locate(l.kept, u.row, here);
        T* goal = x + here[2] + to;
        total.template store<FRESH>(goal, FRESH ? Pack<T, N>() : *(const Pack<T, N>*)goal);
    }
}

// Of the positions that lead to the same place, the last one writes its values there.
template <typename T, typename V, typename I, int RUN>
__global__ void writes(T* x, const V* values, const u32* order, const __grid_constant__ Layout l, PLACES(I), i64 units) {
    __shared__ Targets<RUN> found[8];
    Places<I> places = {index, length, stride, back, skipped};
    Targets<RUN>& targets = found[threadIdx.x >> 5];
    EACH_UNIT(unit, units) {
        Unit u(l, unit, RUN, 128, 1);
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
