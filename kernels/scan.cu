// Running sums and products along a dimension, and the recurrence y[i] = b[i] + a[i] y[i - 1].
//
// Traffic in bytes, n elements of s: running reads and writes n s; a team goes along a line, with four adjacent elements for each
// thread. The recurrence reads its operands twice and writes n s: each thread takes a run of a line, reduces it, gets the
// result of the runs before it, and goes through its run again. Blelloch, Prefix Sums and Their Applications, 1990.

#include "common.cuh"

// What four neighbours and all before them have, in order; a product of many elements might overflow where the whole is 0.
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

// Tensors 0 and 1 of the layout are x and out.
template <typename Op, typename T, typename Out>
__global__ void running(const T* x, Out* out, const __grid_constant__ Layout l, int reverse, int lanes) {
    typedef typename Carry<Op, WIDE(Out)>::type A;
    __shared__ A room[8];
    Team team(lanes);
    bool live = team.row < l.rows;
    i64 place[2] = {0, 0}, from = l.folded.strides[0][0], to = l.folded.strides[1][0];
    if (live) locate(l.kept, team.row, place);
    A carried = Op::template first<A>();
    for (i64 start = 0; start < l.width; start += 4 * lanes) {
        A v[4];
        i64 first = start + 4 * team.rank;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            i64 i = first + k;
            v[k] = live && i < l.width
                ? (A)Op::template load<WIDE(Out)>(x[place[0] + (reverse ? l.width - 1 - i : i) * from]) : Op::template first<A>();
        }
#pragma unroll
        for (int k = 1; k < 4; ++k) v[k] = Op::of(v[k - 1], v[k]);
        A earlier = before<Op, Carry<Op, WIDE(Out)>::in_order>(v[3], carried, team, room);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            i64 i = first + k;
            if (live && i < l.width) out[place[1] + (reverse ? l.width - 1 - i : i) * to] = (Out)Op::of(earlier, v[k]);
        }
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
