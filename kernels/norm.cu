// Layer and RMS norm, forward and backward, a team of threads per row; and the affine map of all norms for given statistics.
//
// Traffic in bytes, n elements of s: layer and RMS norm read n s (a row that fits is in cache for its second read), write n s and
// two numbers per row, and read and write n s more if layer norm computes a sum first. dx reads 2 n s and writes n s. The
// gradients of weight and bias read 2 n s again, mostly from cache if layer_norm_grads computes them with dx and rows have up to
// 2048 elements; their partial sums lie in the workspace. affine reads and writes n s, and reads n s more if it also computes the
// gradient of relu.
// Ba, Kiros and Hinton, arXiv:1607.06450; Zhang and Sennrich, arXiv:1910.07467.

#include "common.cuh"
#include "norm.cuh"

// Contiguous rows. Centred is layer norm, of `a` + `b` if these are given, whose sum is stored in x first. Otherwise the mean is
// taken to be 0, which is RMS norm.
template <typename T, bool Centred>
__global__ void layer_norm(T* x, const T* weight, const T* bias, T* out, T* mean, T* rstd, i64 rows, i64 width, double eps,
                           const T* a, const T* b, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(lanes);
    if (team.row >= rows) return;
    x += team.row * width;
    out += team.row * width;
    A m = 0, square = 0;
    if (Centred) {
        i64 start = team.row * width;
        for (i64 i = team.rank; i < width; i += lanes) {
            T own = a ? (T)((A)a[start + i] + (A)b[start + i]) : x[i];
            if (a) x[i] = own;
            m += (A)own;
        }
        m = team_fold<Sum>(m, team, room) / (A)width;
    }
    for (i64 i = team.rank; i < width; i += lanes) square += ((A)x[i] - m) * ((A)x[i] - m);
    A r = (A)1 / sqrt(team_fold<Sum>(square, team, room) / (A)width + (A)eps);
    for (i64 i = team.rank; i < width; i += lanes) {
        A factor = weight ? (A)weight[i] : (A)1, level = bias ? (A)bias[i] : (A)0;
        out[i] = (T)affine_of(((A)x[i] - m) * r, weight, factor, bias, level);
    }
    if (team.rank) return;
    if (mean) mean[team.row] = (T)m;
    rstd[team.row] = (T)r;
}

// The values for N neighbours: one element for all of them, or N elements; `none` if there is no tensor.
template <int N, typename A, typename T>
__device__ __forceinline__ void given(const T* x, i64 at, bool same, A none, A (&made)[N]) {
    Pack<T, N> found;
    if (x && !same) found = *(const Pack<T, N>*)(x + at);
#pragma unroll
    for (int k = 0; k < N; ++k) made[k] = !x ? none : same ? (A)x[at] : (A)found.of[k];
}

// (x - mean) rstd weight + bias, for given mean and rstd. The statistics and the affine map belong to the rows and the
// columns of [rows, width], or both belong to channels: then `inner` elements share one of `channels` (0 for rows). N neighbours
// are in one row.
// If S is wider than T, a channel's statistics are adjacent: element c of them is at 2 c. With `relu`, relu is applied to the
// rounded result, where NaN stays NaN; with `dy`, the result is the gradient of relu for that cotangent.
template <typename T, typename S, int N>
__global__ void affine(const T* x, const T* weight, const T* bias, const S* mean, const S* rstd, T* out, i64 n, i64 inner,
                       i64 channels, int relu, const T* dy) {
    typedef WIDE(T) A;
    const int step = sizeof(S) > sizeof(T) ? 2 : 1;
    EACH(i, n / N) {
        i64 row = n < (i64)1 << 32 ? (i64)((u32)(i * N) / (u32)inner) : i * N / inner, column = i * N - row * inner;
        if (channels) row = column = row < (i64)1 << 32 ? (i64)((u32)row % (u32)channels) : row % channels;
        A m = (A)mean[step * row], r = (A)rstd[step * row], factor[N], level[N];
        Pack<T, N> v = *(const Pack<T, N>*)(x + i * N), g;
        if (dy) g = *(const Pack<T, N>*)(dy + i * N);
        given(weight, column, channels, (A)1, factor);
        given(bias, column, channels, (A)0, level);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            T made = (T)affine_of(((A)v.of[k] - m) * r, weight, factor[k], bias, level[k]);
            v.of[k] = dy ? (T)((A)made <= 0 ? (A)0 : (A)g.of[k]) : relu && (A)made < 0 ? (T)0 : made;
        }
        *(Pack<T, N>*)(out + i * N) = v;
    }
}

// rstd (g - mean(g) - hat mean(g hat)), with g = dy weight and hat = (x - mean) rstd, of one row; with `added`, added to dx.
template <typename T, bool Centred>
__device__ __forceinline__ void row_dx(const T* dy, const T* x, const T* weight, const T* mean, const T* rstd, T* dx, i64 row,
                                       i64 width, int added, const Team& team, WIDE(T)* room) {
    typedef WIDE(T) A;
    dy += row * width;
    x += row * width;
    dx += row * width;
    A m = Centred ? (A)mean[row] : (A)0, r = (A)rstd[row], level = 0, slope = 0;
#pragma unroll 4
    for (i64 i = team.rank; i < width; i += team.lanes) {
        A g = weight ? (A)dy[i] * (A)weight[i] : (A)dy[i];
        level += g;
        slope += g * (((A)x[i] - m) * r);
    }
    level = Centred ? team_fold<Sum>(level, team, room) / (A)width : (A)0;
    slope = team_fold<Sum>(slope, team, room) / (A)width;
    for (i64 from = team.rank; from < width; from += 4 * team.lanes) {
        // Four loads before the first store, which the compiler must assume to overwrite what later loads read.
        A g[4], v[4], old[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            i64 i = from + k * team.lanes;
            bool in = i < width;
            g[k] = in ? weight ? (A)dy[i] * (A)weight[i] : (A)dy[i] : (A)0;
            v[k] = in ? (A)x[i] : (A)0;
            old[k] = in && added ? (A)dx[i] : (A)0;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            T made = (T)((g[k] - level - (v[k] - m) * r * slope) * r);
            i64 i = from + k * team.lanes;
            if (i < width) dx[i] = added ? (T)plus(old[k], (A)made) : made;
        }
    }
}

template <typename T, bool Centred>
__global__ void layer_norm_dx(const T* dy, const T* x, const T* weight, const T* mean, const T* rstd, T* dx, i64 rows,
                              i64 width, int added, int lanes) {
    __shared__ WIDE(T) room[8];
    Team team(lanes);
    if (team.row < rows) row_dx<T, Centred>(dy, x, weight, mean, rstd, dx, team.row, width, added, team, room);
}

// The contribution of one row to the gradients of weight and bias at a column.
template <typename T, bool Centred>
__device__ __forceinline__ void add_slopes(const T* dy, const T* x, const T* mean, const T* rstd, i64 row, i64 width,
                                           i64 column, WIDE(T)& w, WIDE(T)& b) {
    typedef WIDE(T) A;
    A g = (A)dy[row * width + column], m = Centred ? (A)mean[row] : (A)0;
    w += g * (((A)x[row * width + column] - m) * (A)rstd[row]);
    b += g;
}

// Stores one of `parts` sums of a column in made[2, parts, width], which affine_total adds up; a single one is the result.
template <typename T>
__device__ __forceinline__ void keep_slopes(WIDE(T)* made, T* dweight, T* dbias, i64 part, int parts, i64 width, i64 column,
                                            WIDE(T) w, WIDE(T) b) {
    if (parts == 1) {
        dweight[column] = (T)w;
        if (dbias) dbias[column] = (T)b;
    } else {
        made[part * width + column] = w;
        made[(parts + part) * width + column] = b;
    }
}

// The sums of each lane's values over a block's warps, for the first warp.
template <typename A>
__device__ __forceinline__ void fold_warps(A& w, A& b) {
    __shared__ A weights[8][32], biases[8][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    weights[warp][lane] = w;
    biases[warp][lane] = b;
    __syncthreads();
    if (warp) return;
    for (int k = 1; k < 8; ++k) w += weights[k][lane], b += biases[k][lane];
}

// Sums over rows of dy hat and of dy: 32 columns per tile; eight warps share the rows of one of `parts`.
template <typename T, bool Centred>
__global__ void affine_parts(const T* dy, const T* x, const T* mean, const T* rstd, WIDE(T)* made, T* dweight, T* dbias,
                             i64 rows, i64 width, int parts) {
    i64 part = blockIdx.x % parts, column = blockIdx.x / parts * 32 + (threadIdx.x & 31);
    i64 each = (rows + parts - 1) / parts, end = each * (part + 1) < rows ? each * (part + 1) : rows;
    WIDE(T) w = 0, b = 0;
    if (column < width)
        for (i64 row = each * part + (threadIdx.x >> 5); row < end; row += 8)
            add_slopes<T, Centred>(dy, x, mean, rstd, row, width, column, w, b);
    fold_warps(w, b);
    if (threadIdx.x < 32 && column < width) keep_slopes(made, dweight, dbias, part, parts, width, column, w, b);
}

template <typename T>
__global__ void affine_total(const WIDE(T)* made, T* dweight, T* dbias, i64 width, int parts) {
    i64 column = (i64)blockIdx.x * 32 + (threadIdx.x & 31);
    WIDE(T) w = 0, b = 0;
    if (column < width) {
#pragma unroll 8
        for (int k = threadIdx.x >> 5; k < parts; k += 8) {
            w += made[k * width + column];
            b += made[(parts + k) * width + column];
        }
    }
    fold_warps(w, b);
    if (threadIdx.x < 32 && column < width) keep_slopes<T>(nullptr, dweight, dbias, 0, 1, width, column, w, b);
}

// dx, and the gradients of weight and bias, of the rows of one of `parts` blocks: teams take a few rows, and then groups of
// threads take the columns of the same rows, which are still in cache, eight for each thread. Of narrow rows a block takes more.
template <typename T>
__global__ void layer_norm_grads(const T* dy, const T* x, const T* weight, const T* mean, const T* rstd, T* dx, WIDE(T)* made,
                                 T* dweight, T* dbias, i64 rows, i64 width, int parts, int added, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[8], weights[256], biases[256];
    Team team(lanes);
    i64 each = (rows + parts - 1) / parts, first = each * blockIdx.x, end = first + each < rows ? first + each : rows;
    int across = 32;
    while (across < 256 && across < width) across *= 2;
    int group = threadIdx.x / across, groups = 256 / across, some = groups > 1 ? 32 : 256 / lanes;
    for (i64 base = threadIdx.x % across; base - threadIdx.x % across < width; base += 8 * across) {
        A w[8] = {}, b[8] = {};
        for (i64 from = first; from < end; from += some) {
            i64 to = from + some < end ? from + some : end;
            if (base < across)  // the first pass
                for (i64 row = from + threadIdx.x / lanes; row < to; row += 256 / lanes)
                    row_dx<T, true>(dy, x, weight, mean, rstd, dx, row, width, added, team, room);
            for (i64 row = from + group; row < to; row += groups) {
                A m = (A)mean[row], r = (A)rstd[row], g[8], v[8];
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    i64 column = base + j * across;
                    bool in = column < width;
                    g[j] = in ? (A)dy[row * width + column] : (A)0;
                    v[j] = in ? (A)x[row * width + column] : m;
                }
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    w[j] += g[j] * ((v[j] - m) * r);
                    b[j] += g[j];
                }
            }
        }
        if (groups > 1) {  // the only pass, over one column for each thread
            weights[threadIdx.x] = w[0];
            biases[threadIdx.x] = b[0];
            __syncthreads();
            for (int k = across; k < 256 && !group; k += across) {
                w[0] += weights[k + threadIdx.x];
                b[0] += biases[k + threadIdx.x];
            }
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            i64 column = base + j * across;
            if (!group && column < width) keep_slopes(made, dweight, dbias, blockIdx.x, parts, width, column, w[j], b[j]);
        }
    }
}
