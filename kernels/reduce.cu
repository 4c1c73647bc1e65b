// Reductions over some dimensions of a strided tensor: sum, mean, variance, norms, extremes and their positions, any, all.
//
// Traffic in bytes, n elements of s reduced to m of t: reads n s, writes m t; a variance reads n s once more, for the mean.
// A team of threads takes a row. If neighboring results are adjacent, as in column sums, eight warps take 32 of them. A few long
// rows are split over many blocks: each stores its part in memory that the launches of a stream share, and the last block to
// arrive reduces the parts in their order. No result depends on the order in which blocks run.

#include "common.cuh"
#include "arrivals.cuh"

// How a reduction loads an element, and what it does to the result. Both are left unchanged, except for norms and variances.
// `how` is a norm's power, or a row's mean.
template <typename Op>
struct Ends {
    template <typename A, typename T> static __device__ __forceinline__ A load(T x, A) { return Op::template load<A>(x); }
    template <typename A> static __device__ __forceinline__ A end(A v, A) { return v; }
};

struct Deviations : Sum {};
template <> struct Ends<Deviations> : Ends<Sum> {
    template <typename A, typename T> static __device__ __forceinline__ A load(T x, A how) {
        return ((A)x - how) * ((A)x - how);
    }
};

struct Squares : Sum {};
template <> struct Ends<Squares> {
    template <typename A, typename T> static __device__ __forceinline__ A load(T x, A) { return (A)x * (A)x; }
    template <typename A> static __device__ __forceinline__ A end(A v, A) { return sqrt(v); }
};

struct Powers : Sum {};
template <> struct Ends<Powers> {
    template <typename A, typename T> static __device__ __forceinline__ A load(T x, A how) { return pow(fabs((A)x), how); }
    template <typename A> static __device__ __forceinline__ A end(A v, A how) { return pow(v, (A)1 / how); }
};

struct NotZero : Sum {};
template <> struct Ends<NotZero> : Ends<Sum> {
    template <typename A, typename T> static __device__ __forceinline__ A load(T x, A) { return (A)x != (A)0; }
};

// Sum and extremes of absolute values.
template <typename Op> struct Absolute : Op {};
template <typename Op> struct Ends<Absolute<Op>> : Ends<Op> {
    template <typename A, typename T> static __device__ __forceinline__ A load(T x, A) { return fabs((A)x); }
};

// Reduces the elements from `first` on of a row at x, shared by `step` threads of which this is number `rank`.
template <typename Op, typename A, typename T>
__device__ __forceinline__ A folded(const T* x, const Axes& axes, i64 first, i64 end, int rank, int step, A how) {
    A v = Op::template first<A>();
    if (axes.count == 1) {
        const int N = 16 / sizeof(T);
        i64 stride = axes.strides[0][0];
        if (stride == 1 && !((u64)(x + first) & 15)) {
            const Pack<T, N>* packs = (const Pack<T, N>*)(x + first);
            i64 count = first < end ? (end - first) / N : 0;
#pragma unroll 4
            for (i64 i = rank; i < count; i += step) {
                Pack<T, N> found = packs[i];
#pragma unroll
                for (int k = 0; k < N; ++k) v = Op::of(v, Ends<Op>::load(found.of[k], how));
            }
            first += count * N;
        }
        i64 i = first + rank;
        // Enough loads in flight to keep memory busy, in 16 bits too; a narrow row has four per thread.
        for (; i + 7 * step < end; i += 8 * step) {
            T found[8];
#pragma unroll
            for (int k = 0; k < 8; ++k) found[k] = x[(i + k * step) * stride];
#pragma unroll
            for (int k = 0; k < 8; ++k) v = Op::of(v, Ends<Op>::load(found[k], how));
        }
#pragma unroll 4
        for (; i < end; i += step) v = Op::of(v, Ends<Op>::load(x[i * stride], how));
    } else {
#pragma unroll 1
        for (i64 i = first + rank; i < end; i += step) v = Op::of(v, Ends<Op>::load(x[at(axes, i)], how));
    }
    return v;
}

// Reduces what `parts` blocks have stored, `apart` numbers from each other, shared by `step` threads of which this is number `rank`.
template <typename Op, typename A>
__device__ __forceinline__ A folded_parts(const volatile A* made, int parts, int apart, int rank, int step) {
    A v = Op::template first<A>();
    // Nothing else is under way then, so that each wait for memory counts.
    for (int k = rank; k < parts; k += 4 * step) {
        A found[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) found[j] = k + j * step < parts ? (A)made[(k + j * step) * apart] : Op::template first<A>();
#pragma unroll
        for (int j = 0; j < 4; ++j) v = Op::of(v, found[j]);
    }
    return v;
}

// The last step of a reduction: the division of a mean or a variance, the root of a norm.
template <typename Op, typename A>
__device__ __forceinline__ A ended(A v, double divisor, A how) {
    return Ends<Op>::end(divisor == 1 ? v : v / (A)divisor, how);
}

// Tensor 0 of the layout is x, tensor 1 of the kept dimensions is out; `level`, if given, has a number for each row.
template <typename Op, typename T, typename Out>
__global__ void fold(const T* x, Out* out, const __grid_constant__ Layout l, double divisor, double power,
                     const WIDE(T)* level, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(lanes);
    if (team.row >= l.rows) return;
    i64 place[2];
    locate(l.kept, team.row, place);
    A how = level ? level[team.row] : (A)power;
    A v = folded<Op, A>(x + place[0], l.folded, 0, l.width, team.rank, lanes, how);
    v = team_fold<Op>(v, team, room);
    if (!team.rank) out[place[1]] = (Out)ended<Op>(v, divisor, how);
}

// The elements of one of `parts` blocks of a row: whole accesses.
__device__ __forceinline__ i64 share_of(i64 width, int parts) { return ((width + parts - 1) / parts + 15) / 16 * 16; }

// `parts` blocks per row, more than one, and at most 1024 for all rows together.
template <typename Op, typename T, typename Out>
__global__ void fold_split(const T* x, Out* out, const __grid_constant__ Layout l, double divisor, double power,
                           const WIDE(T)* level, int parts, Shared* shared) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(256);
    i64 row = team.row / parts, part = team.row % parts, each = share_of(l.width, parts), place[2];
    locate(l.kept, row, place);
    i64 end = each * (part + 1) < l.width ? each * (part + 1) : l.width;
    A how = level ? level[row] : (A)power;
    A v = folded<Op, A>(x + place[0], l.folded, each * part, end, team.rank, 256, how);
    v = team_fold<Op>(v, team, room);
    volatile A* made = (A*)shared->parts + row * parts;
    if (!team.rank) made[part] = v;
    if (!last_of(shared->arrivals, row, parts)) return;
    v = team_fold<Op>(folded_parts<Op, A>(made, parts, 1, team.rank, 256), team, room);
    if (!team.rank) out[place[1]] = (Out)ended<Op>(v, divisor, how);
}

// Reduces the values that each of a block's warps has of 32 results, for the first warp.
template <typename Op, typename A>
__device__ __forceinline__ A over_warps(A v, A (&room)[8][32]) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    room[warp][lane] = v;
    __syncthreads();
    for (int k = 1; k < 8 && !warp; ++k) v = Op::of(v, room[k][lane]);
    return v;
}

// 32 results per tile, `parts` blocks per tile; at most 1024 blocks if there is more than one part.
template <typename Op, typename T, typename Out>
__global__ void fold_columns(const T* x, Out* out, const __grid_constant__ Layout l, double divisor, double power,
                             const WIDE(T)* level, int parts, Shared* shared) {
    typedef WIDE(T) A;
    __shared__ A room[8][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    i64 tile = blockIdx.x / parts, part = blockIdx.x % parts, column = tile * 32 + lane, place[2] = {0, 0};
    i64 each = (l.width + parts - 1) / parts, end = each * (part + 1) < l.width ? each * (part + 1) : l.width;
    A v = Op::template first<A>(), how = level && column < l.rows ? level[column] : (A)power;
    if (column < l.rows) {
        locate(l.kept, column, place);
        v = folded<Op, A>(x + place[0], l.folded, each * part, end, warp, 8, how);
    }
    v = over_warps<Op>(v, room);
    if (parts > 1) {
        volatile A* made = (A*)shared->parts + (tile * parts) * 32 + lane;
        if (!warp) made[part * 32] = v;
        if (!last_of(shared->arrivals, tile, parts)) return;
        v = over_warps<Op>(folded_parts<Op, A>(made, parts, 32, warp, 8), room);
    }
    if (!warp && column < l.rows) out[place[1]] = (Out)ended<Op>(v, divisor, how);
}

// Does a, at position i, win over b at j? Negative positions stand for nothing; among equals the first wins; NaN wins over all.
template <typename Side, typename A>
__device__ __forceinline__ bool wins(A a, i64 i, A b, i64 j) {
    if (j < 0 || i < 0) return i >= 0;
    if (a != a) return b == b || i < j;
    return b == b && (Side::better(a, b) || (a == b && i < j));
}

// The best element so far, and its position in the row; or that of the first of an access of neighbors that it is among, since
// to look for it there once, at the end, takes fewer instructions.
template <typename Side, typename A>
struct Best {
    A v = Side::template first<A>();
    i64 place = -1;

    __device__ __forceinline__ void take(A other, i64 i) {
        if (wins<Side>(other, i, v, place)) v = other, place = i;
    }

    // Takes an element behind all before it, so that an equal one does not win.
    __device__ __forceinline__ void next(A other, i64 i) {
        bool won = (Side::better(other, v) || other != other) && v == v;
        v = won ? other : v;
        place = won ? i : place;
    }

    // Takes the elements from `first` on of a row at x, shared by `step` threads as in `folded`.
    template <typename T>
    __device__ __forceinline__ void search(const T* x, const Axes& axes, i64 first, i64 end, int rank, int step) {
        i64 stride = axes.strides[0][0], earliest = first + rank;
        if (axes.count == 1 && stride == 1 && !((u64)(x + first) & 15)) {
            const int N = 16 / sizeof(T);
            const Pack<T, N>* packs = (const Pack<T, N>*)(x + first);
            i64 count = first < end ? (end - first) / N : 0, from = first;
#pragma unroll 4
            for (i64 i = rank; i < count; i += step) {
                Pack<T, N> found = packs[i];
                A best = (A)found.of[0];
#pragma unroll
                for (int k = 1; k < N; ++k) best = Side::of(best, (A)found.of[k]);
                next(best, from + i * N);
            }
            first += count * N;
            earliest = rank < count ? from + rank * N : first + rank;
        }
        i64 i = first + rank;
        if (axes.count == 1)
            for (; i + 7 * step < end; i += 8 * step) {
                T found[8];
#pragma unroll
                for (int k = 0; k < 8; ++k) found[k] = x[(i + k * step) * stride];
#pragma unroll
                for (int k = 0; k < 8; ++k) next((A)found[k], i + k * step);
            }
#pragma unroll 1
        for (; i < end; i += step) next((A)x[at(axes, i)], i);
        // All are as bad as can be.
        if (place < 0 && earliest < end) place = earliest;
    }

    // Finds the element itself, in the row at x. Zeros of both signs are equal.
    template <typename T>
    __device__ __forceinline__ void settle(const T* x, const Axes& axes) {
        for (; place >= 0; ++place) {
            A own = (A)x[at(axes, place)];
            if (own == v || (own != own && v != v)) {
                v = own;
                break;
            }
        }
    }

    // Takes the best of all threads of the team; the first one has the result. `room` and `at_of` are in shared memory.
    __device__ __forceinline__ void meet(const Team& team, A* room, i64* at_of) {
        for (int offset = team.farthest(); offset; offset >>= 1) {
            A other = __shfl_xor_sync(0xffffffffu, v, offset);
            take(other, __shfl_xor_sync(0xffffffffu, place, offset));
        }
        if (team.lanes <= 32) return;
        __syncthreads();  // until all threads have read the previous result
        if (!(threadIdx.x & 31)) room[threadIdx.x >> 5] = v, at_of[threadIdx.x >> 5] = place;
        __syncthreads();
        for (int k = 0; k < 8; ++k) take(room[k], at_of[k]);
    }
};

template <typename Side, typename T>
__global__ void find(const T* x, i64* indices, T* values, const __grid_constant__ Layout l, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    __shared__ i64 at_of[8];
    Team team(lanes);
    if (team.row >= l.rows) return;
    Best<Side, A> best;
    x += at(l.kept, team.row);
    best.search(x, l.folded, 0, l.width, team.rank, lanes);
    best.meet(team, room, at_of);
    if (team.rank) return;
    best.settle(x, l.folded);
    indices[team.row] = best.place;
    if (values) values[team.row] = (T)best.v;
}

// `parts` blocks per row, as in fold_split. A part is two numbers: the value and its position.
template <typename Side, typename T>
__global__ void find_split(const T* x, i64* indices, T* values, const __grid_constant__ Layout l, int parts, Shared* shared) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    __shared__ i64 at_of[8];
    Team team(256);
    i64 row = team.row / parts, part = team.row % parts, each = share_of(l.width, parts);
    i64 end = each * (part + 1) < l.width ? each * (part + 1) : l.width;
    Best<Side, A> best;
    x += at(l.kept, row);
    best.search(x, l.folded, each * part, end, team.rank, 256);
    best.meet(team, room, at_of);
    volatile i64* made = shared->parts + 2 * row * parts;
    if (!team.rank) *(volatile A*)(made + 2 * part) = best.v, made[2 * part + 1] = best.place;
    if (!last_of(shared->arrivals, row, parts)) return;
    best.place = -1;
    for (int k = team.rank; k < parts; k += 4 * 256) {
        A found[4];
        i64 place[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            bool there = k + j * 256 < parts;
            found[j] = there ? *(volatile A*)(made + 2 * (k + j * 256)) : (A)0;
            place[j] = there ? made[2 * (k + j * 256) + 1] : -1;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) best.take(found[j], place[j]);
    }
    best.meet(team, room, at_of);
    if (team.rank) return;
    best.settle(x, l.folded);
    indices[row] = best.place;
    if (values) values[row] = (T)best.v;
}
