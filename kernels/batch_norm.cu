// Batch norm. Several blocks share a channel, one block has a channel to itself, or, where channels are adjacent in memory, blocks
// share as many of them as a warp reads at once.
//
// Traffic in bytes, n elements of s: reads 2 n s and writes n s. The workspace holds two numbers per share of a channel.
// Ioffe and Szegedy, arXiv:1502.03167.

#include "channels.cuh"
#include "common.cuh"
#include "norm.cuh"

// The mean of some elements, and the sum of squared deviations from it (Chan, Golub and LeVeque, Stanford STAN-CS-79-773).
template <typename A>
struct Moments {
    A seen = 0, mean = 0, square = 0;
    // Further elements: how many, their mean, and their sum of squared deviations.
    __device__ __forceinline__ void take(A count, A other, A more) {
        A off = other - mean, share = count > 0 ? count / (seen + count) : (A)0;
        // In this order, so that what overflows is not multiplied by 0.
        square += more + off * (off * (seen * share));
        mean += off * share;
        seen += count;
    }
    // What lanes that are a multiple of `apart` from each other have; the first one's result counts.
    __device__ __forceinline__ void across(int apart) {
        for (int step = 16; step >= apart; step >>= 1) {
            A size = __shfl_xor_sync(0xffffffffu, seen, step), other = __shfl_xor_sync(0xffffffffu, mean, step);
            take(size, other, __shfl_xor_sync(0xffffffffu, square, step));
        }
    }
};

// The mean and the sum of squared deviations of a block's share of the channel that begins at x, some elements of each thread at a
// time.
template <typename T, int N>
__device__ __forceinline__ void moments_of(const T* x, Walk<N> walk, i64 first, i64 last, const Team& team, WIDE(T)* room,
                                           WIDE(T)& m, WIDE(T)& square) {
    typedef WIDE(T) A;
    Moments<A> own;
    for (i64 from = first + team.rank * N; from < last; from += Places<N>::all) {
        Places<N> places(walk, last - from);
        Pack<T, N> v[places.some];
        A sum = 0, more = 0, count = (A)(places.there * N);
        places.load(x, v);
#pragma unroll
        for (int k = 0; k < places.some * N; ++k)
            if (k / N < places.there) sum += (A)v[k / N].of[k % N];
        sum /= count;
#pragma unroll
        for (int k = 0; k < places.some * N; ++k)
            if (k / N < places.there) more += ((A)v[k / N].of[k % N] - sum) * ((A)v[k / N].of[k % N] - sum);
        own.take(count, sum, more);
    }
    m = team_fold<Sum>(own.mean * own.seen, team, room) / (A)(last > first ? last - first : 1);
    square = team_fold<Sum>(own.square + (own.mean - m) * ((own.mean - m) * own.seen), team, room);
}

// The same for each share, into made[parts, channels, 2].
template <typename T, int N>
__global__ void batch_parts(const T* x, WIDE(T)* made, i64 count, i64 inner, i64 channels, int parts) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(256);
    i64 first, last;
    share_of(count, blockIdx.x / channels, parts, first, last);
    A m, square;
    Walk<N> walk(first + team.rank * N, count, inner, channels);
    moments_of<T, N>(x + blockIdx.x % channels * inner, walk, first, last, team, room, m, square);
    if (!team.rank) made[2 * blockIdx.x] = m, made[2 * blockIdx.x + 1] = square;
}

// As batch_parts, for channels that are adjacent in memory.
template <typename T, int N>
__global__ void __launch_bounds__(256, 2)
batch_columns(const T* x, WIDE(T)* made, i64 count, i64 channels, int parts) {
    typedef WIDE(T) A;
    constexpr int SOME = rows_of<T, N>();
    __shared__ A seen[8];
    __shared__ Pack<A, N> means[8][32], squares[8][32];
    Columns<N> columns(count, channels, parts);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    Moments<A> own[N];
    for (i64 row = columns.first; row < columns.last; row += 8 * SOME) {
        int there = columns.there(row, SOME);
        Pack<T, N> v[SOME];
#pragma unroll
        for (int k = 0; k < SOME; ++k)
            if (k < there) v[k] = *(const Pack<T, N>*)(x + (row + 8 * k) * channels + columns.c);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            A sum = 0, more = 0;
#pragma unroll
            for (int k = 0; k < SOME; ++k)
                if (k < there) sum += (A)v[k].of[j];
            sum /= (A)there;
#pragma unroll
            for (int k = 0; k < SOME; ++k)
                if (k < there) more += ((A)v[k].of[j] - sum) * ((A)v[k].of[j] - sum);
            own[j].take((A)there, sum, more);
        }
    }
    Pack<A, N> mean, square;
#pragma unroll
    for (int j = 0; j < N; ++j) mean.of[j] = own[j].mean, square.of[j] = own[j].square;
    means[warp][lane] = mean, squares[warp][lane] = square;
    // The first lane has a channel if any lane has.
    if (!lane) seen[warp] = own[0].seen;
    __syncthreads();
    i64 c = columns.c - lane * N + threadIdx.x;
    if (threadIdx.x >= 32 * N || c >= channels) return;
    Moments<A> all;
    int from = threadIdx.x / N, which = threadIdx.x % N;
    for (int k = 0; k < 8; ++k) all.take(seen[k], means[k][from].of[which], squares[k][from].of[which]);
    *(Pack<A, 2>*)(made + 2 * (columns.part * channels + c)) = {all.mean, all.square};
}

// Stores a channel's statistics; the running variance uses the unbiased variance.
template <typename T>
__device__ __forceinline__ void keep_statistics(WIDE(T)* mean, WIDE(T)* rstd, void* running_mean, void* running_var, int wide, i64 c,
                                                i64 count, WIDE(T) m, WIDE(T) var, WIDE(T) r, double momentum) {
    typedef WIDE(T) A;
    A old = (A)(1 - momentum), now = (A)momentum;
    mean[c] = m;
    rstd[c] = r;
    if (running_mean) set_channel<T>(running_mean, c, wide, of_channel<T>(running_mean, c, wide) * old + m * now);
    if (running_var)
        set_channel<T>(running_var, c, wide,
                       of_channel<T>(running_var, c, wide) * old + var * (now * (A)count / (A)(count - 1)));
}

// A warp for four channels, whose numbers for a share fill a sector. `batches`, if given, counts this batch.
template <typename T>
__global__ void batch_statistics(const WIDE(T)* made, WIDE(T)* mean, WIDE(T)* rstd, void* running_mean, void* running_var, i64 count,
                                 i64 channels, int parts, double eps, double momentum, i64* batches, int wide) {
    typedef WIDE(T) A;
    i64 c = (i64)blockIdx.x * 32 + threadIdx.x / 32 * 4 + threadIdx.x % 4;
    Moments<A> all;
#pragma unroll 4
    for (int part = threadIdx.x % 32 / 4; c < channels && part < parts; part += 8) {
        i64 first, last;
        share_of(count, part, parts, first, last);
        Pack<A, 2> pair = *(const Pack<A, 2>*)(made + 2 * (part * channels + c));
        all.take((A)(last - first), pair.of[0], pair.of[1]);
    }
    all.across(4);
    if (threadIdx.x % 32 > 3 || c >= channels) return;
    if (batches && !c) ++*batches;
    A m = all.mean, var = all.square / (A)count, r = (A)1 / sqrt(var + (A)eps);
    keep_statistics<T>(mean, rstd, running_mean, running_var, wide, c, count, m, var, r, momentum);
}

// The mean and the variance of a channel from at most 32 shares beside each other, by a warp; the first lane's result counts.
template <typename A>
__device__ __forceinline__ void put_together(const A* pairs, i64 count, int parts, A& m, A& var) {
    int lane = threadIdx.x & 31;
    i64 first = 0, last = 0;
    if (lane < parts) share_of(count, lane, parts, first, last);
    Moments<A> all;
    if (last > first) all.take((A)(last - first), pairs[2 * lane], pairs[2 * lane + 1]);
    all.across(1);
    m = all.mean;
    var = all.square / (A)count;
}

// Normalizes one of `shares` of a channel. Each block combines the results of batch_parts; a block that has a channel to itself
// computes the statistics too. With `relu`, relu is applied to the rounded result; NaN stays NaN.
template <typename T, int N>
__global__ void batch_norm(const T* x, const void* weight, const void* bias, const WIDE(T)* made, T* out, WIDE(T)* mean,
                           WIDE(T)* rstd, void* running_mean, void* running_var, i64 count, i64 inner, i64 channels, int parts,
                           int shares, double eps, double momentum, i64* batches, int wide, int relu) {
    typedef WIDE(T) A;
    __shared__ A room[8], pairs[64], both[2];
    Team team(256);
    i64 first, last, c = blockIdx.x % channels, share = blockIdx.x / channels;
    share_of(count, share, shares, first, last);
    Walk<N> walk(first + team.rank * N, count, inner, channels);
    x += c * inner;
    out += c * inner;
    A m, var;
    if (made) gather(made, c, channels, parts, pairs);
    else moments_of<T, N>(x, walk, first, last, team, room, m, var);
    if (!made) var /= (A)count;
    else if (team.rank < 32) put_together(pairs, count, parts, m, var);
    if (!team.rank) both[0] = m, both[1] = (A)1 / sqrt(var + (A)eps);
    __syncthreads();
    m = both[0];
    A r = both[1];
    if (!team.rank && !share) {
        keep_statistics<T>(mean, rstd, running_mean, running_var, wide, c, count, m, var, r, momentum);
        if (batches && !c) ++*batches;
    }
    A factor = weight ? of_channel<T>(weight, c, wide) : (A)1, level = bias ? of_channel<T>(bias, c, wide) : (A)0;
    // All loads before the first store, since the compiler must assume that the store overwrites what later loads read.
    for (i64 from = first + team.rank * N; from < last; from += Places<N>::all) {
        Places<N> places(walk, last - from);
        Pack<T, N> v[places.some];
        places.load(x, v);
#pragma unroll
        for (int k = 0; k < places.some; ++k) {
#pragma unroll
            for (int j = 0; j < N; ++j) {
                T now = (T)affine_of(((A)v[k].of[j] - m) * r, weight, factor, bias, level);
                v[k].of[j] = relu && (A)now < 0 ? (T)0 : now;
            }
            if (k < places.there) *(Pack<T, N>*)(out + places.at[k]) = v[k];
        }
    }
}

// As `affine` in norm.cu, for channels that are adjacent in memory: a thread has the numbers of N channels.
template <typename T, int N>
__global__ void __launch_bounds__(256, N * sizeof(WIDE(T)) > 16 ? 2 : 3)
affine_columns(const T* x, const void* weight, const void* bias, const WIDE(T)* mean, const WIDE(T)* rstd, T* out, i64 count,
               i64 channels, int parts, int wide, int relu, const T* dy) {
    typedef WIDE(T) A;
    constexpr int SOME = rows_of<T, N>();
    Columns<N> columns(count, channels, parts);
    i64 c = columns.c;
    if (c >= channels) return;
    A m[N], r[N], factor[N], level[N];
    of_channels<T>(mean, c, true, (A)0, m);
    of_channels<T>(rstd, c, true, (A)0, r);
    of_channels<T>(weight, c, wide, (A)1, factor);
    of_channels<T>(bias, c, wide, (A)0, level);
    for (i64 row = columns.back(SOME); row >= columns.first; row -= 8 * SOME) {
        int there = columns.there(row, SOME);
        Pack<T, N> v[SOME], g[SOME];
#pragma unroll
        for (int k = 0; k < SOME; ++k) {
            i64 at = (row + 8 * k) * channels + c;
            if (k < there) v[k] = *(const Pack<T, N>*)(x + at);
            if (dy && k < there) g[k] = *(const Pack<T, N>*)(dy + at);
        }
#pragma unroll
        for (int k = 0; k < SOME; ++k) {
#pragma unroll
            for (int j = 0; j < N; ++j) {
                T made = (T)affine_of(((A)v[k].of[j] - m[j]) * r[j], weight, factor[j], bias, level[j]);
                v[k].of[j] = through_relu<A>(made, relu, dy, g[k].of[j]);
            }
            if (k < there) *(Pack<T, N>*)(out + (row + 8 * k) * channels + c) = v[k];
        }
    }
}
