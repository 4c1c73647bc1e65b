// Softmax and related functions over some dimensions of strided tensors, a team of threads per row.
//
// The maximum and the sum of exponentials are computed in one pass (Milakov and Gimelshein, Online normalizer calculation
// for softmax, arXiv:1805.02867); the second pass reads the row from cache if it fits. Traffic in bytes, n elements of s,
// m rows: softmax and log_softmax read n s and write n s; each gradient reads 2 n s and writes n s; logsumexp reads n s
// and writes m s.

#include "common.cuh"
#include "softmax.cuh"

// There is one reduced dimension, whose element i is at `i * stride`; a row begins where the kept dimensions say.
template <typename T, bool Logarithm>
__global__ void softmax(const T* x, T* out, const __grid_constant__ Layout l, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[16];
    Team team(lanes);
    if (team.row >= l.rows) return;
    i64 row[2], step = l.folded.strides[0][0], out_step = l.folded.strides[1][0];
    locate(l.kept, team.row, row);
    x += row[0];
    out += row[1];
    Peak<A> peak = peak_of(x, l.width, step, team, room);
    A scale = Logarithm ? log(peak.whole()) : (A)1 / peak.whole();
    for (i64 i = team.rank; i < l.width; i += lanes) {
        A v = (A)x[i * step] - peak.top;
        out[i * out_step] = (T)(Logarithm ? v - scale : exp(v) * scale);
    }
}

// x (dy - sum(dy x)) if x is a softmax; dy - exp(x) sum(dy) if x is a log_softmax.
template <typename T, bool Logarithm>
__global__ void softmax_grad(const T* dy, const T* x, T* out, const __grid_constant__ Layout l, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(lanes);
    if (team.row >= l.rows) return;
    i64 row[3], dy_step = l.folded.strides[0][0], step = l.folded.strides[1][0], out_step = l.folded.strides[2][0];
    locate(l.kept, team.row, row);
    dy += row[0];
    x += row[1];
    out += row[2];
    A total = 0;
    for (i64 i = team.rank; i < l.width; i += lanes)
        total += Logarithm ? (A)dy[i * dy_step] : (A)dy[i * dy_step] * (A)x[i * step];
    total = team_fold<Sum>(total, team, room);
    for (i64 i = team.rank; i < l.width; i += lanes) {
        A g = (A)dy[i * dy_step], v = (A)x[i * step];
        out[i * out_step] = (T)(Logarithm ? g - exp(v) * total : (g - total) * v);
    }
}

template <typename T>
__global__ void logsumexp(const T* x, T* out, const __grid_constant__ Layout l, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[16];
    Team team(lanes);
    if (team.row >= l.rows) return;
    x += at(l.kept, team.row);
    Peak<A> peak;
    if (l.folded.count == 1) {
        peak = peak_of(x, l.width, l.folded.strides[0][0], team, room);
    } else {
        for (i64 i = team.rank; i < l.width; i += lanes) peak.take((A)x[at(l.folded, i)]);
        peak = team_peak(peak, team, room);
    }
    // A row of only -inf gives log(its length) - inf = -inf; one with +inf gives +inf.
    if (!team.rank) out[team.row] = (T)(log(peak.total) + peak.top);
}
