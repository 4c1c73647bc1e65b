// Losses: cross-entropy of rows of logits against class indices, a team of threads per row, forward and backward; mean squared
// error.
//
// Traffic in bytes, N rows of C elements of s: forward reads N C s and N labels, and writes a loss per row, or the sums of a
// block's rows, which the last block to arrive adds up in a fixed order. Backward reads N C s and N labels, and writes N C s; each
// block, or a launch before it, reads all labels for the sum of weights; a row that fits is in cache for its second read. The fused
// forward and backward reads each row once. mse_loss reads 2 n s for n elements and writes up to 256 partial sums, which the last
// block adds up. An invalid label gives NaN: the host could not check it without waiting.

#include "common.cuh"
#include "arrivals.cuh"
#include "softmax.cuh"

template <typename A, typename T>
__device__ __forceinline__ A weight_of(i64 label, const T* weight, int classes, i64 ignored) {
    if (label == ignored) return (A)0;
    if (label < 0 || label >= classes) return not_a_number<A>();
    return weight ? (A)weight[label] : (A)1;
}

// The sum of `mine` over a block.
__device__ __forceinline__ double block_sum(double mine) {
    __shared__ double room[8];
    return team_fold<Sum>(mine, Team(256), room);
}

// Calls f with each of n elements, shared by a block's threads, 16 bytes of x at a time where its address allows.
template <typename T, typename F>
__device__ __forceinline__ void each_of(const T* x, i64 n, F f) {
    const int N = 16 / sizeof(T);
    i64 whole = (u64)x & 15 ? 0 : n / N;
#pragma unroll 8
    for (i64 i = threadIdx.x; i < whole; i += 256) {
        Pack<T, N> found = ((const Pack<T, N>*)x)[i];
#pragma unroll
        for (int k = 0; k < N; ++k) f(found.of[k]);
    }
#pragma unroll 4
    for (i64 i = whole * N + threadIdx.x; i < n; i += 256) f(x[i]);
}

// The total weight of all rows, computed by one block.
template <typename A, typename T, typename I>
__device__ __forceinline__ A whole_of(const I* target, const T* weight, i64 rows, int classes, i64 ignored) {
    // Without weights a thread counts ones: that is exact in single precision, and cheap on any GPU.
    double total = 0;
    A ones = 0;
    each_of(target, rows, [&](I label) {
        A w = weight_of<A>((i64)label, weight, classes, ignored);
        if (weight) total += (double)w;
        else ones += w;
    });
    return (A)block_sum(total + (double)ones);
}

// (softmax(x) - onehot(label)) * scale, 0 whatever x is if the label is ignored; `part` holds the last part of x.
template <typename A, typename T, int N>
__device__ __forceinline__ void slopes_of(const T* x, Part<T, N>& part, const Peak<A>& peak, i64 label, i64 ignored, A scale,
                                          T* out, int classes, const Team& team) {
    A share = (A)1 / peak.whole();
    for (i64 from = 0; from < classes; from += part.span(team)) {
        if (classes > part.span(team)) part.load(x + from, 1, classes - from, team, (A)0);
        int hot = label >= from && label - from < part.span(team) ? (int)(label - from) : -1;
        part.store(out + from, 1, classes - from, team, [&](int k, int at) {
            A own = exp(part.v[k] - peak.top) * share - (A)(at == hot);
            return label == ignored ? (A)0 : own * scale;
        });
    }
}

// Each row's loss or, with `out`, their sum or mean; with `Slopes` also its gradient for a cotangent of 1, which is stored in
// `one`. The gradient of a mean is divided by `whole`, or if that is null, by the total that each block computes.
template <typename T, typename I, int N, bool Slopes>
__global__ void __launch_bounds__(256, Slopes || sizeof(T) > 4 ? 2 : 4)
cross_entropy(const T* logits, const I* target, const T* weight, T* losses, T* out, const WIDE(T)* whole, T* one, T* slopes, i64 rows,
              int classes, i64 ignored, int mean, int lanes, Shared* shared) {
    typedef WIDE(T) A;
    __shared__ A room[16];
    Team team(lanes);
    bool counts = Slopes && mean && !whole;
    A over = Slopes && mean && whole ? *whole : (A)1;
    // The sums of a thread's losses and weights, for which there are no registers.
    __shared__ double kept[2][256];
    kept[0][threadIdx.x] = kept[1][threadIdx.x] = 0;
    if (Slopes && !team.row && !team.rank) *one = (T)(A)1;
    int teams = 256 / lanes;
    for (i64 first = (i64)blockIdx.x * teams; first < rows; first += (i64)gridDim.x * teams, counts = false) {
        i64 row = first + team.row % teams, label = row < rows ? target[row] : 0;
        const T* x = logits + row * classes;
        Part<T, N> part;
        Peak<A> peak;
        if (row < rows) peak = peak_of(x, classes, 1, team, room, part);
        // After the first loads, which have no need to wait for it, or for the label.
        if (counts) over = whole_of<A>(target, weight, rows, classes, ignored);
        if (row >= rows) continue;
        A w = weight_of<A>(label, weight, classes, ignored);
        if (!team.rank) {
            // A NaN weight marks an invalid label, which must not be read at; 0 times an infinite loss must not spoil the sum.
            A own = w == 0 ? (A)0 : w != w ? w : w * (log(peak.whole()) + (peak.top - (A)x[label]));
            if (!out) losses[row] = (T)own;
            kept[0][threadIdx.x] += (double)own, kept[1][threadIdx.x] += (double)w;
        }
        if (!Slopes) continue;
        // The team writes slopes, which may be over the logits, after its first thread has read at the label.
        if (team.lanes > 32) __syncthreads();
        else if (team.lanes > 1) __syncwarp();
        slopes_of(x, part, peak, label, ignored, mean ? w / over : w, slopes + row * classes, classes, team);
    }
    if (!out) return;
    double loss = block_sum(kept[0][threadIdx.x]), total = block_sum(kept[1][threadIdx.x]);
    if (gridDim.x > 1) {
        double* sums = (double*)shared->parts;
        if (!threadIdx.x) sums[2 * blockIdx.x] = loss, sums[2 * blockIdx.x + 1] = total;
        if (!last_of(shared->arrivals, 0, (int)gridDim.x)) return;
        loss = total = 0;
        for (int k = threadIdx.x; k < (int)gridDim.x; k += 256) loss += sums[2 * k], total += sums[2 * k + 1];
        loss = block_sum(loss), total = block_sum(total);
    }
    if (!threadIdx.x) *out = (T)(mean ? loss / total : loss);
}

// The total weight, for the mean's gradient: one block, or without weights several, whose counts are exact in any order.
template <typename T, typename I>
__global__ void whole_weight(const I* target, const T* weight, WIDE(T)* out, i64 rows, int classes, i64 ignored, Shared* shared) {
    // Whole accesses.
    i64 each = ((rows + gridDim.x - 1) / gridDim.x + 15) / 16 * 16, first = each * blockIdx.x;
    i64 count = first >= rows ? 0 : rows - first < each ? rows - first : each;
    double total = (double)whole_of<WIDE(T)>(target + first, weight, count, classes, ignored);
    if (gridDim.x > 1) {
        double* sums = (double*)shared->parts;
        if (!threadIdx.x) sums[blockIdx.x] = total;
        if (!last_of(shared->arrivals, 0, (int)gridDim.x)) return;
        total = block_sum(threadIdx.x < gridDim.x ? sums[threadIdx.x] : 0.0);
    }
    if (!threadIdx.x) *out = (WIDE(T))total;
}

// The gradient of the rows alone, for a mean divided by `whole` or the total that each block computes. With `each`, every row has
// a cotangent of its own.
template <typename T, typename I, int N>
__global__ void __launch_bounds__(256, 2)
cross_entropy_grad(const T* dy, const T* logits, const I* target, const T* weight, const WIDE(T)* whole, T* out, i64 rows,
                   int classes, i64 ignored, int mean, int each, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[16];
    Team team(lanes);
    A over = 1;
    if (mean) over = whole ? *whole : whole_of<A>(target, weight, rows, classes, ignored);
    if (team.row >= rows) return;
    const T* x = logits + team.row * classes;
    i64 label = target[team.row];
    A scale = weight_of<A>(label, weight, classes, ignored) * (A)dy[each ? team.row : 0];
    if (mean) scale /= over;
    Part<T, N> part;
    Peak<A> peak = peak_of(x, classes, 1, team, room, part);
    slopes_of(x, part, peak, label, ignored, scale, out + team.row * classes, classes, team);
}

// At most 256 blocks, each with a part of the sum; `divisor` is 1 for a sum.
template <typename T>
__global__ void mse_loss(const T* x, const T* target, double* parts, T* out, i64 n, double divisor, Shared* shared) {
    constexpr int N = 16 / sizeof(T), MANY = 4;
    typedef Pack<T, N> P;
    const P *left = (const P*)x, *right = (const P*)target;
    i64 whole = ((u64)x | (u64)target) & 15 ? 0 : n / N, threads = (i64)gridDim.x * 256;
    i64 own = (i64)blockIdx.x * 256 + threadIdx.x;
    double total = 0;
    auto take = [&](T one, T other) {
        WIDE(T) d = (WIDE(T))one - (WIDE(T))other;
        total += (double)(d * d);
    };
    // There are few blocks, so that a thread has several accesses under way.
    for (i64 first = own; first < whole; first += MANY * threads) {
        P xs[MANY], targets[MANY];
#pragma unroll
        for (int j = 0; j < MANY; ++j)
            if (first + j * threads < whole) xs[j] = left[first + j * threads], targets[j] = right[first + j * threads];
#pragma unroll
        for (int j = 0; j < MANY * N; ++j)
            if (first + j / N * threads < whole) take(xs[j / N].of[j % N], targets[j / N].of[j % N]);
    }
#pragma unroll 4
    for (i64 i = whole * N + own; i < n; i += threads) take(x[i], target[i]);
    total = block_sum(total);
    if (gridDim.x > 1) {
        if (!threadIdx.x) parts[blockIdx.x] = total;
        if (!last_of(shared->arrivals, 0, (int)gridDim.x)) return;
        total = block_sum(threadIdx.x < gridDim.x ? parts[threadIdx.x] : 0.0);
    }
    if (!threadIdx.x) *out = (T)(total / divisor);
}
