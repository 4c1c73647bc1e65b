// Softmax and related functions over some dimensions of strided tensors, a team of threads per row.
//
// The maximum and the sum of exponentials are computed in one pass (Milakov and Gimelshein, Online normalizer calculation
// for softmax, arXiv:1805.02867). Traffic in bytes, n elements of s, m rows: softmax and log_softmax read n s and write n s; each
// gradient reads 2 n s and writes n s; logsumexp reads n s and writes m s. A row that does not fit in registers is read twice.

#include "common.cuh"
#include "softmax.cuh"

// There is one reduced dimension, whose element i is at `i * stride`; a row begins where the kept dimensions say. With N more than
// 1, rows are contiguous, and their lengths and addresses multiples of N elements.
template <typename T, bool Logarithm, int N>
__global__ void __launch_bounds__(256, 3)
softmax(const T* x, T* out, const __grid_constant__ Layout l, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[16];
    Team team(lanes);
    if (team.row >= l.rows) return;
    i64 row[2], step = l.folded.strides[0][0], out_step = l.folded.strides[1][0];
    locate(l.kept, team.row, row);
    x += row[0];
    out += row[1];
    Part<T, N> part;
    if (!Logarithm && l.width <= part.span(team)) {  // one exponential an element
        part.load(x, step, l.width, team, (A)0);
        A share = (A)1 / peak_of_held(part, l.width, team, room).whole();
        part.store(out, out_step, l.width, team, [&](int k, int) { return part.v[k] * share; });
        return;
    }
    Peak<A> peak = peak_of(x, l.width, step, team, room, part);
    A scale = Logarithm ? log(peak.whole()) : (A)1 / peak.whole();
    for (i64 from = 0; from < l.width; from += part.span(team)) {
        if (l.width > part.span(team)) part.load(x + from * step, step, l.width - from, team, (A)0);
        part.store(out + from * out_step, out_step, l.width - from, team, [&](int k, int) {
            A v = part.v[k] - peak.top;
            return Logarithm ? v - scale : exp(v) * scale;
        });
    }
}

// x (dy - sum(dy x)) if x is a softmax; dy - exp(x) sum(dy) if x is a log_softmax.
template <typename T, bool Logarithm, int N>
__global__ void __launch_bounds__(256, 2)
softmax_grad(const T* dy, const T* x, T* out, const __grid_constant__ Layout l, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(lanes);
    if (team.row >= l.rows) return;
    i64 row[3], dy_step = l.folded.strides[0][0], step = l.folded.strides[1][0], out_step = l.folded.strides[2][0];
    locate(l.kept, team.row, row);
    dy += row[0];
    x += row[1];
    out += row[2];
    Part<T, N> g, y;
    A total = 0;
    for (i64 from = 0; from < l.width; from += g.span(team)) {
        g.load(dy + from * dy_step, dy_step, l.width - from, team, (A)0);
        y.load(x + from * step, step, l.width - from, team, (A)0);
#pragma unroll
        for (int k = 0; k < g.count; ++k) total += Logarithm ? g.v[k] : g.v[k] * y.v[k];
    }
    total = team_fold<Sum>(total, team, room);
    for (i64 from = 0; from < l.width; from += g.span(team)) {
        if (l.width > g.span(team)) {
            g.load(dy + from * dy_step, dy_step, l.width - from, team, (A)0);
            y.load(x + from * step, step, l.width - from, team, (A)0);
        }
        g.store(out + from * out_step, out_step, l.width - from, team, [&](int k, int) {
            return Logarithm ? g.v[k] - exp(y.v[k]) * total : (g.v[k] - total) * y.v[k];
        });
    }
}

template <typename T, int N>
__global__ void logsumexp(const T* x, T* out, const __grid_constant__ Layout l, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[16];
    Team team(lanes);
    if (team.row >= l.rows) return;
    x += at(l.kept, team.row);
    Peak<A> peak;
    if (l.folded.count == 1) {
        Part<T, N> part;
        peak = peak_of(x, l.width, l.folded.strides[0][0], team, room, part);
    } else {
        for (i64 i = team.rank; i < l.width; i += lanes) peak.take((A)x[at(l.folded, i)]);
        peak = team_peak(peak, team, room);
    }
    // A row of only -inf gives log(its length) - inf = -inf; one with +inf gives +inf.
    if (!team.rank) out[team.row] = (T)(log(peak.total) + peak.top);
}
