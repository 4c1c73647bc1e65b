// The gradients of batch norm, in blocks as in batch_norm.cu.
//
// Traffic in bytes, n elements of s: reads 4 n s, or 6 n s if it uses relu's output, and writes n s. The workspace holds two
// numbers per share of a channel.

#include "channels.cuh"
#include "common.cuh"
#include "norm.cuh"

// The cotangent of batch norm's output. With `relu`, dy is that of relu's output, and the gradient of relu follows from `shown`,
// relu's output, or without it from batch norm's output, which is recomputed. Positions count from `first` on.
template <typename T>
struct Cotangent {
    typedef WIDE(T) A;
    const T *dy, *shown;
    A factor, level;
    bool relu, weighted, biased;
    Cotangent() = default;
    __device__ __forceinline__ Cotangent(const T* dy, const T* shown, const void* weight, const void* bias, int wide, int relu,
                                         i64 c, i64 first)
        : dy(dy + first), shown(shown ? shown + first : shown), factor(weight ? of_channel<T>(weight, c, wide) : (A)1),
          level(bias ? of_channel<T>(bias, c, wide) : (A)0), relu(relu), weighted(weight), biased(bias) {}
    // Loads dy, and `shown` if there is one.
    template <int N> __device__ __forceinline__ void load(i64 at, Pack<T, N>& g, Pack<T, N>& y) const {
        g = *(const Pack<T, N>*)(dy + at);
        if (shown) y = *(const Pack<T, N>*)(shown + at);
    }
    // The cotangent of one element, which has these.
    __device__ __forceinline__ A of(T g, T y, A hat) const {
        if (!relu) return (A)g;
        if (shown) return (A)y <= 0 ? (A)0 : (A)g;
        return (A)(T)affine_of(hat, weighted, factor, biased, level) <= 0 ? (A)0 : (A)g;
    }
};

// The same for a thread's next accesses to a channel, with the normalized elements.
template <typename T, int N>
struct Cotangents {
    typedef WIDE(T) A;
    Places<N> places;
    A g[Places<N>::some * N], hat[Places<N>::some * N];
    __device__ __forceinline__ Cotangents(const Cotangent<T>& cotangent, const T* x, Walk<N>& walk, i64 left, A m, A r)
        : places(walk, left) {
        Pack<T, N> v[Places<N>::some], dy[Places<N>::some], shown[Places<N>::some];
        places.load(x, v);
#pragma unroll
        for (int k = 0; k < places.some; ++k)
            if (k < places.there) cotangent.load(places.at[k], dy[k], shown[k]);
#pragma unroll
        for (int k = 0; k < places.some * N; ++k) {
            hat[k] = ((A)v[k / N].of[k % N] - m) * r;
            g[k] = cotangent.of(dy[k / N].of[k % N], shown[k / N].of[k % N], hat[k]);
        }
    }
};

// The contribution to the gradients of weight and bias of a block's share of the channel that begins at x.
template <typename T, int N>
__device__ __forceinline__ void slopes_of(const Cotangent<T>& cotangent, const T* x, Walk<N> walk, i64 first, i64 last,
                                          WIDE(T) m, WIDE(T) r, const Team& team, WIDE(T)* room, WIDE(T)& w, WIDE(T)& b) {
    w = b = 0;
    for (i64 from = first + team.rank * N; from < last; from += Places<N>::all) {
        Cotangents<T, N> next(cotangent, x, walk, last - from, m, r);
#pragma unroll
        for (int k = 0; k < next.places.some * N; ++k)
            if (k / N < next.places.there) w += next.g[k] * next.hat[k], b += next.g[k];
    }
    w = team_fold<Sum>(w, team, room);
    b = team_fold<Sum>(b, team, room);
}

// The same for each share, into made[parts, channels, 2].
template <typename T, int N>
__global__ void __launch_bounds__(256, 2)
batch_grad_parts(const T* dy, const T* x, const void* weight, const WIDE(T)* mean, const WIDE(T)* rstd, WIDE(T)* made, const void* bias,
                 const T* shown, i64 count, i64 inner, i64 channels, int parts, int wide, int relu) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(256);
    i64 first, last, c = blockIdx.x % channels;
    share_of(count, blockIdx.x / channels, parts, first, last);
    Cotangent<T> cotangent(dy, shown, weight, bias, wide, relu, c, c * inner);
    A w, b;
    Walk<N> walk(first + team.rank * N, count, inner, channels);
    slopes_of<T, N>(cotangent, x + c * inner, walk, first, last, mean[c], rstd[c], team, room, w, b);
    if (!team.rank) made[2 * blockIdx.x] = w, made[2 * blockIdx.x + 1] = b;
}

// The same for N adjacent channels.
template <typename T, int N>
__device__ __forceinline__ void cotangents_of(Cotangent<T> (&made)[N], const T* dy, const T* shown, const void* weight, const void* bias,
                                              int wide, int relu, i64 c) {
    WIDE(T) factor[N], level[N];
    of_channels<T>(weight, c, wide, (WIDE(T))1, factor);
    of_channels<T>(bias, c, wide, (WIDE(T))0, level);
#pragma unroll
    for (int j = 0; j < N; ++j) {
        made[j].dy = dy + c, made[j].shown = shown ? shown + c : shown;
        made[j].factor = factor[j], made[j].level = level[j];
        made[j].relu = relu, made[j].weighted = weight, made[j].biased = bias;
    }
}

// As Cotangents, for a thread's next rows of adjacent channels, of which `there` exist.
template <typename T, int N>
struct RowCotangents {
    typedef WIDE(T) A;
    static constexpr int some = N > 4 ? 1 : rows_of<T, N>();
    int there;
    A g[some][N], hat[some][N];
    __device__ __forceinline__ RowCotangents(const Cotangent<T> (&cotangent)[N], const T* x, const Columns<N>& columns, i64 row,
                                             const A (&m)[N], const A (&r)[N])
        : there(columns.there(row, some)) {
        Pack<T, N> v[some], dy[some], shown[some];
#pragma unroll
        for (int k = 0; k < some; ++k) {
            i64 at = (row + 8 * k) * columns.channels;
            if (k < there) v[k] = *(const Pack<T, N>*)(x + at), cotangent[0].load(at, dy[k], shown[k]);
        }
#pragma unroll
        for (int k = 0; k < some; ++k) {
#pragma unroll
            for (int j = 0; j < N; ++j) {
                hat[k][j] = ((A)v[k].of[j] - m[j]) * r[j];
                g[k][j] = cotangent[j].of(dy[k].of[j], shown[k].of[j], hat[k][j]);
            }
        }
    }
};

// As batch_grad_parts, for channels that are adjacent in memory.
template <typename T, int N>
__global__ void __launch_bounds__(256, 2)
batch_grad_columns(const T* dy, const T* x, const void* weight, const WIDE(T)* mean, const WIDE(T)* rstd, WIDE(T)* made, const void* bias,
                   const T* shown, i64 count, i64 channels, int parts, int wide, int relu) {
    typedef WIDE(T) A;
    __shared__ Pack<A, N> weights[8][32], biases[8][32];
    Columns<N> columns(count, channels, parts);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    i64 c = columns.c < channels ? columns.c : 0;
    Cotangent<T> cotangent[N];
    A m[N], r[N];
    Pack<A, N> w = {}, b = {};
    of_channels<T>(mean, c, true, (A)0, m);
    of_channels<T>(rstd, c, true, (A)0, r);
    cotangents_of(cotangent, dy, shown, weight, bias, wide, relu, c);
    for (i64 row = columns.first; row < columns.last; row += 8 * RowCotangents<T, N>::some) {
        RowCotangents<T, N> next(cotangent, x + c, columns, row, m, r);
#pragma unroll
        for (int k = 0; k < next.some; ++k) {
#pragma unroll
            for (int j = 0; j < N; ++j)
                if (k < next.there) w.of[j] += next.g[k][j] * next.hat[k][j], b.of[j] += next.g[k][j];
        }
    }
    weights[warp][lane] = w, biases[warp][lane] = b;
    __syncthreads();
    c = columns.c - lane * N + threadIdx.x;
    if (threadIdx.x >= 32 * N || c >= channels) return;
    Pack<A, 2> all = {};
    int from = threadIdx.x / N, which = threadIdx.x % N;
    for (int k = 0; k < 8; ++k) all.of[0] += weights[k][from].of[which], all.of[1] += biases[k][from].of[which];
    *(Pack<A, 2>*)(made + 2 * (columns.part * channels + c)) = all;
}

// Their sums, which are also stored in the first share's place, where dx reads them in full precision.
template <typename T>
__global__ void batch_grad_total(WIDE(T)* made, void* dweight, void* dbias, i64 channels, int parts, int wide) {
    EACH(c, channels) {
        WIDE(T) w = 0, b = 0;
        for (int part = 0; part < parts; ++part) w += made[2 * (part * channels + c)], b += made[2 * (part * channels + c) + 1];
        made[2 * c] = w, made[2 * c + 1] = b;
        set_channel<T>(dweight, c, wide, w), set_channel<T>(dbias, c, wide, b);
    }
}

template <typename T, int N>
__global__ void batch_norm_dx(const T* dy, const T* x, const void* weight, const WIDE(T)* mean, const WIDE(T)* rstd, const WIDE(T)* made,
                              T* dx, const void* bias, const T* shown, i64 n, i64 inner, i64 channels, int wide, int relu) {
    typedef WIDE(T) A;
    i64 count = n / channels;
    EACH(i, n / N) {
        i64 at = i * N, c = n < (i64)1 << 32 ? (i64)((u32)at / (u32)inner % (u32)channels) : at / inner % channels;
        A m = mean[c], r = rstd[c], own = weight ? r * of_channel<T>(weight, c, wide) : r;
        A level = made[2 * c + 1] / (A)count, slope = made[2 * c] / (A)count;
        Cotangent<T> cotangent(dy, shown, weight, bias, wide, relu, c, 0);
        Pack<T, N> v = *(const Pack<T, N>*)(x + at), g, y;
        cotangent.load(at, g, y);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            A hat = ((A)v.of[k] - m) * r;
            v.of[k] = (T)(own * (cotangent.of(g.of[k], y.of[k], hat) - level - hat * slope));
        }
        *(Pack<T, N>*)(dx + at) = v;
    }
}

// As batch_norm_dx, for channels that are adjacent in memory: a thread has the numbers of N channels.
template <typename T, int N>
__global__ void __launch_bounds__(256, 2)
batch_dx_columns(const T* dy, const T* x, const void* weight, const WIDE(T)* mean, const WIDE(T)* rstd, const WIDE(T)* made, T* dx,
                 const void* bias, const T* shown, i64 count, i64 channels, int parts, int wide, int relu) {
    typedef WIDE(T) A;
    Columns<N> columns(count, channels, parts);
    i64 c = columns.c;
    if (c >= channels) return;
    Cotangent<T> cotangent[N];
    A m[N], r[N], own[N], level[N], slope[N], both[2 * N];
    of_channels<T>(mean, c, true, (A)0, m);
    of_channels<T>(rstd, c, true, (A)0, r);
    of_channels<T>(made, 2 * c, true, (A)0, both);
    cotangents_of(cotangent, dy, shown, weight, bias, wide, relu, c);
#pragma unroll
    for (int j = 0; j < N; ++j) {
        own[j] = r[j] * cotangent[j].factor;
        level[j] = both[2 * j + 1] / (A)count, slope[j] = both[2 * j] / (A)count;
    }
    for (i64 row = columns.back(RowCotangents<T, N>::some); row >= columns.first; row -= 8 * RowCotangents<T, N>::some) {
        RowCotangents<T, N> next(cotangent, x + c, columns, row, m, r);
#pragma unroll
        for (int k = 0; k < next.some; ++k) {
            Pack<T, N> now;
#pragma unroll
            for (int j = 0; j < N; ++j) now.of[j] = (T)(own[j] * (next.g[k][j] - level[j] - next.hat[k][j] * slope[j]));
            if (k < next.there) *(Pack<T, N>*)(dx + (row + 8 * k) * channels + c) = now;
        }
    }
}

// All three gradients, for one of `shares` of a channel, divided among blocks as in batch_norm; no dx if it is not needed.
template <typename T, int N>
__global__ void __launch_bounds__(256, 2)
batch_norm_grads(const T* dy, const T* x, const void* weight, const WIDE(T)* mean, const WIDE(T)* rstd, const WIDE(T)* made, T* dx,
                 void* dweight, void* dbias, const void* bias, const T* shown, i64 count, i64 inner, i64 channels, int parts,
                 int shares, int wide, int relu) {
    typedef WIDE(T) A;
    __shared__ A room[8], pairs[64], both[2];
    Team team(256);
    i64 first, last, c = blockIdx.x % channels, share = blockIdx.x / channels;
    share_of(count, share, shares, first, last);
    Walk<N> walk(first + team.rank * N, count, inner, channels);
    Cotangent<T> cotangent(dy, shown, weight, bias, wide, relu, c, c * inner);
    x += c * inner;
    A m = mean[c], r = rstd[c], w = 0, b = 0;
    if (made) gather(made, c, channels, parts, pairs);
    else slopes_of<T, N>(cotangent, x, walk, first, last, m, r, team, room, w, b);
    if (!team.rank) {
        for (int part = 0; made && part < parts; ++part) w += pairs[2 * part], b += pairs[2 * part + 1];
        both[0] = w / (A)count, both[1] = b / (A)count;
        if (!share) set_channel<T>(dweight, c, wide, w), set_channel<T>(dbias, c, wide, b);
    }
    __syncthreads();
    if (!dx) return;
    dx += c * inner;
    A slope = both[0], level = both[1], own = weight ? r * of_channel<T>(weight, c, wide) : r;
    for (i64 from = first + team.rank * N; from < last; from += Places<N>::all) {
        Cotangents<T, N> next(cotangent, x, walk, last - from, m, r);
#pragma unroll
        for (int k = 0; k < next.places.some; ++k) {
            Pack<T, N> now;
#pragma unroll
            for (int j = 0; j < N; ++j) now.of[j] = (T)(own * (next.g[k * N + j] - level - next.hat[k * N + j] * slope));
            if (k < next.places.there) *(Pack<T, N>*)(dx + next.places.at[k]) = now;
        }
    }
}
