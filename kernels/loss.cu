// Losses: cross-entropy of rows of logits against class indices, a team of threads a row, both ways; mean squared error.
//
// Traffic in bytes, N rows of C elements of s: forward reads N C s and N labels, writes a loss and a weight a row, which
// one block then sums in a fixed order; backward reads N C s and N labels twice (the sum of weights, the rows), and writes
// N C s; a row that fits is found in cache the second time. mse_loss reads 2 n s for n elements and writes up to 256
// partial sums. A label that is no class gives NaN: the host cannot be asked without waiting for it.

#include "common.cuh"
#include "softmax.cuh"

template <typename A, typename T>
__device__ __forceinline__ A weight_of(i64 label, const T* weight, int classes, i64 ignored) {
    if (label == ignored) return (A)0;
    if (label < 0 || label >= classes) return not_a_number<A>();
    return weight ? (A)weight[label] : (A)1;
}

template <typename A, typename T>
__device__ __forceinline__ Peak<A> peak_of(const T* x, int classes, const Team& team, A* room) {
    Peak<A> peak;
    for (int c = team.rank; c < classes; c += team.lanes) peak.take((A)x[c]);
    return team_peak(peak, team, room);
}

template <typename T, typename I>
__global__ void cross_entropy_rows(const T* logits, const I* target, const T* weight, T* losses, T* weights, i64 rows,
                                   int classes, i64 ignored, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[16];
    Team team(lanes);
    if (team.row >= rows) return;
    const T* x = logits + team.row * classes;
    Peak<A> peak = peak_of(x, classes, team, room);
    if (team.rank) return;
    i64 label = target[team.row];
    A w = weight_of<A>(label, weight, classes, ignored);
    weights[team.row] = (T)w;
    // NaN is no label to read at; 0 times an infinite loss must not spoil the sum.
    losses[team.row] = (T)(w == 0 ? (A)0 : w != w ? w : w * (log(peak.whole()) + (peak.top - (A)x[label])));
}

// The sum of `mine` over a block.
__device__ __forceinline__ double block_sum(double mine) {
    __shared__ double room[8];
    return team_fold<Sum>(mine, Team(256), room);
}

// One block: sum or mean of the rows, in an order that does not change from run to run.
template <typename T>
__global__ void cross_entropy_reduce(const T* losses, const T* weights, T* out, i64 rows, int mean) {
    double loss = 0, weight = 0;
    for (i64 i = threadIdx.x; i < rows; i += 256) {
        loss += (double)losses[i];
        weight += (double)weights[i];
    }
    loss = block_sum(loss);
    weight = block_sum(weight);
    if (!threadIdx.x) *out = (T)(mean ? loss / weight : loss);
}

// One block: the whole weight, for the mean's gradient.
template <typename T, typename I>
__global__ void whole_weight(const I* target, const T* weight, WIDE(T)* out, i64 rows, int classes, i64 ignored) {
    double total = 0;
    for (i64 i = threadIdx.x; i < rows; i += 256) total += (double)weight_of<WIDE(T)>((i64)target[i], weight, classes, ignored);
    total = block_sum(total);
    if (!threadIdx.x) *out = (WIDE(T))total;
}

// (softmax(logits) - onehot(target)) * dy * weight [/ whole]
template <typename T, typename I>
__global__ void cross_entropy_grad(const T* dy, const T* logits, const I* target, const T* weight, const WIDE(T)* whole,
                                   T* out, i64 rows, int classes, i64 ignored, int each, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[16];
    Team team(lanes);
    if (team.row >= rows) return;
    const T* x = logits + team.row * classes;
    i64 label = target[team.row];
    A scale = weight_of<A>(label, weight, classes, ignored) * (A)dy[each ? team.row : 0];
    if (whole) scale /= *whole;
    Peak<A> peak = peak_of(x, classes, team, room);
    A share = (A)1 / peak.whole();
    for (int c = team.rank; c < classes; c += lanes)
        out[team.row * classes + c] = (T)(scale == 0 ? (A)0 : (exp((A)x[c] - peak.top) * share - (A)(c == label)) * scale);
}

// A block's part of the sum; a single block has it all, and `divisor` is 1 for a sum.
template <typename T>
__global__ void mse_loss(const T* x, const T* target, double* parts, T* out, i64 n, double divisor) {
    double total = 0;
    EACH(i, n) {
        WIDE(T) d = (WIDE(T))x[i] - (WIDE(T))target[i];
        total += (double)(d * d);
    }
    total = block_sum(total);
    if (threadIdx.x) return;
    if (gridDim.x == 1) *out = (T)(total / divisor);
    else parts[blockIdx.x] = total;
}

// One block adds up to 256 parts.
template <typename T>
__global__ void mse_total(const double* parts, T* out, int count, double divisor) {
    double total = block_sum(threadIdx.x < count ? parts[threadIdx.x] : 0.0);
    if (!threadIdx.x) *out = (T)(total / divisor);
}
