// Running sums and products along a dimension, and the recurrence y[i] = b[i] + a[i] y[i - 1].
//
// Traffic in bytes, n elements of s: the operands are read twice and n s are written. A team of threads takes a line, and each
// of its threads a run of adjacent elements. A thread reduces its run, gets the result of the runs before it, and goes through
// its run again. Blelloch, Prefix Sums and Their Applications, 1990.

#include "common.cuh"

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

// Tensors 0 and 1 of the layout are x and out.
template <typename Op, typename T, typename Out>
__global__ void running(const T* x, Out* out, const __grid_constant__ Layout l, int reverse, int lanes) {
    typedef WIDE(Out) A;
    __shared__ A parts[256];
    Team team(lanes);
    bool live = team.row < l.rows;
    i64 place[2] = {0, 0}, from = l.folded.strides[0][0], to = l.folded.strides[1][0];
    if (live) locate(l.kept, team.row, place);
    Run run(team, live ? l.width : 0, reverse);
    A v = Op::template first<A>();
    if (lanes > 1) {
        for (i64 i = run.first; i < run.end; ++i) v = Op::of(v, Op::template load<A>(x[place[0] + run.at(i) * from]));
        parts[threadIdx.x] = v;
        __syncthreads();
        v = Op::template first<A>();
        for (int k = 0; k < team.rank; ++k) v = Op::of(v, parts[threadIdx.x - team.rank + k]);
    }
    for (i64 i = run.first; i < run.end; ++i) {
        v = Op::of(v, Op::template load<A>(x[place[0] + run.at(i) * from]));
        out[place[1] + run.at(i) * to] = (Out)v;
    }
}

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
