// Running sums, products and extremes along a dimension, and the recurrence y[i] = b[i] + a[i] y[i - 1].
//
// Traffic in bytes, n elements of s: running reads and writes n s; a team goes along a line, with four adjacent elements for each
// thread. The recurrence reads its operands twice and writes n s: each thread takes a run of a line, reduces it, gets the
// result of the runs before it, and goes through its run again. Blelloch, Prefix Sums and Their Applications, 1990.

#include "common.cuh"

// What four neighbors and all before them have, in order; a product of many elements might overflow where the whole is 0.
template <typename Op, typename A> struct Carry { typedef A type; enum { in_order = 0 }; };
template <> struct Carry<Times, float> { typedef double type; enum { in_order = 1 }; };
template <> struct Carry<Times, double> { typedef double type; enum { in_order = 1 }; };

// `carried` and what the team's earlier threads have, reduced; `carried` then includes what the whole team has. `room` is 8
// elements of shared memory. In order, teams have at most 32 threads.
template <typename Op, bool InOrder, typename A>
__device__ __forceinline__ A before(A v, A& carried, const Team& team, A* room) {
    int lane = threadIdx.x & 31, lanes = team.lanes < 32 ? team.lanes : 32, rank = team.rank & (lanes - 1);
    A earlier = carried;
    if constexpr (InOrder) {
        for (int k = 0; k < lanes; ++k) {
            A other = __shfl_sync(0xffffffffu, v, lane - rank + k);
            if (k == rank) earlier = carried;
            carried = Op::of(carried, other);
        }
        return earlier;
    } else {
        for (int step = 1; step < lanes; step *= 2) {
            A other = __shfl_sync(0xffffffffu, v, lane - (rank < step ? 0 : step));
            if (rank >= step) v = Op::of(other, v);
        }
        A whole = __shfl_sync(0xffffffffu, v, lane - rank + lanes - 1);
        v = __shfl_sync(0xffffffffu, v, lane - (rank ? 1 : 0));
        if (!rank) v = Op::template first<A>();
        if (team.lanes > 32) {
            __syncthreads();  // until all threads have read what the previous call left
            if (!lane) room[threadIdx.x >> 5] = whole;
            __syncthreads();
            whole = Op::template first<A>();
            for (int k = 0; k < 8; ++k) {
                if (k == threadIdx.x >> 5) earlier = Op::of(carried, whole);
                whole = Op::of(whole, room[k]);
            }
        }
        carried = Op::of(carried, whole);
        return Op::of(earlier, v);
    }
}

// Tensors 0 and 1 of the layout are x and out. With N = 4, lines are contiguous, and four elements of a thread are one access.
template <typename Op, typename T, typename Out, int N>
__global__ void running(const T* x, Out* out, const __grid_constant__ Layout l, int reverse, int lanes) {
    typedef typename Carry<Op, WIDE(Out)>::type A;
    __shared__ A room[8];
    Team team(lanes);
    i64 end = team.row < l.rows ? l.width : 0, place[2] = {0, 0}, from = l.folded.strides[0][0], to = l.folded.strides[1][0];
    if (end) locate(l.kept, team.row, place);
    // Where the thread's element k from its `first` on is, and where its access begins.
    auto at = [&](i64 first, int k) { return reverse ? l.width - 1 - first - k : first + k; };
    auto load = [&](i64 first) {
        Pack<T, 4> found;
        if (N == 4 && first < end) found = *(const Pack<T, 4>*)(x + place[0] + at(first, reverse ? 3 : 0));
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (N == 1 && first + k < end) found.of[k] = x[place[0] + at(first, k) * from];
        return found;
    };
    A carried = Op::template first<A>();
    // Two accesses of each thread are under way while it reduces one.
    Pack<T, 4> next = load(4 * team.rank), after = load(4 * (team.rank + lanes));
    for (i64 first = 4 * team.rank; first - 4 * team.rank < l.width; first += 4 * lanes) {
        Pack<T, 4> found = next;
        Pack<Out, 4> made;
        A v[4];
        next = after;
        after = load(first + 8 * lanes);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            v[k] = Op::template first<A>();
            if (first + k < end) v[k] = (A)Op::template load<WIDE(Out)>(N == 4 && reverse ? found.of[3 - k] : found.of[k]);
            if (k) v[k] = Op::of(v[k - 1], v[k]);
        }
        A earlier = before<Op, Carry<Op, WIDE(Out)>::in_order>(v[3], carried, team, room);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            Out own = (Out)Op::of(earlier, v[k]);
            if (N == 1 && first + k < end) out[place[1] + at(first, k) * to] = own;
            made.of[k] = own;
        }
        if (N == 4 && reverse) made = {made.of[3], made.of[2], made.of[1], made.of[0]};
        if (N == 4 && first < end) *(Pack<Out, 4>*)(out + place[1] + at(first, reverse ? 3 : 0)) = made;
    }
}

// A thread's part of its team's line, and the position of element i of a line that is scanned from either end.
struct Run {
    i64 first, end, width;
    int reverse;
    __device__ __forceinline__ Run(const Team& team, i64 width, int reverse) : width(width), reverse(reverse) {
        i64 each = (width + team.lanes - 1) / team.lanes;
        first = each * team.rank < width ? each * team.rank : width;
        end = first + each < width ? first + each : width;
    }
    __device__ __forceinline__ i64 at(i64 i) const { return reverse ? width - 1 - i : i; }
};

// Tensors 0, 1 and 2 of the layout are b, a and out. A run maps the y before it to y = sum + factor * before.
template <typename T>
__global__ void recurrence(const T* b, const T* a, T* out, const __grid_constant__ Layout l, int reverse, int lanes) {
    typedef WIDE(T) A;
    __shared__ A sums[256];
    __shared__ A factors[256];
    Team team(lanes);
    bool live = team.row < l.rows;
    i64 place[3] = {0, 0, 0};
    i64 sb = l.folded.strides[0][0], sa = l.folded.strides[1][0], so = l.folded.strides[2][0];
    if (live) locate(l.kept, team.row, place);
    Run run(team, live ? l.width : 0, reverse);
    A y = 0;
    if (lanes > 1) {
        A factor = 1;
        for (i64 i = run.first; i < run.end; ++i) {
            A own = (A)b[place[0] + run.at(i) * sb];
            // In reverse, an element's factor is that of the element before it in the scan. The first element has none.
            A by = i ? (A)a[place[1] + (reverse ? run.at(i) + 1 : i) * sa] : (A)0;
            y = i == run.first ? own : own + by * y;
            factor = i == run.first ? by : by * factor;
        }
        sums[threadIdx.x] = y;
        factors[threadIdx.x] = factor;
        __syncthreads();
        y = 0;
        for (int k = 0; k < team.rank; ++k) {
            int from = threadIdx.x - team.rank + k;
            y = k ? sums[from] + factors[from] * y : sums[from];
        }
    }
    for (i64 i = run.first; i < run.end; ++i) {
        A own = (A)b[place[0] + run.at(i) * sb];
        y = i ? own + (A)a[place[1] + (reverse ? run.at(i) + 1 : i) * sa] * y : own;
        out[place[2] + run.at(i) * so] = (T)y;
    }
}
