// Layer, group and RMS norm, a team of threads per row, in blocks of 64 threads or of one team; and the affine map of all norms for
// given statistics. RMS norm is layer norm without a mean, which is null, and without biases.
//
// Traffic in bytes, n elements of s: layer and RMS norm read n s (twice more if a row does not fit in registers), write n s and
// two numbers per row, and read and write n s more if layer norm computes a sum first. affine reads and writes n s, and reads n s
// more if it also computes the gradient of relu.
// Ba, Kiros and Hinton, arXiv:1607.06450; Wu and He, arXiv:1803.08494; Zhang and Sennrich, arXiv:1910.07467.

#include "common.cuh"
#include "norm.cuh"
#include "rows.cuh"

// Contiguous rows, whose lengths and addresses are multiples of N elements: of `a` + `b` if these are given, whose sum is stored in x
// first.
template <typename T, int N>
__global__ void layer_norm(T* x, const T* weight, const T* bias, T* out, WIDE(T)* mean, WIDE(T)* rstd, i64 rows, i64 width, double eps,
                           const T* a, const T* b, i64 inner, i64 groups, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(lanes);
    if (team.row >= rows) return;
    i64 start = team.row * width;
    x += start;
    out += start;
    Part<T, N> part;
    A m = 0, square = 0;
    for (i64 from = 0; from < width; from += part.span(team)) {
        if (a) {
            Part<T, N> other;
            part.load(a + start + from, 1, width - from, team, (A)0);
            other.load(b + start + from, 1, width - from, team, (A)0);
#pragma unroll
            for (int k = 0; k < part.count; ++k) part.v[k] = (A)(T)(part.v[k] + other.v[k]);
            part.store(x + from, 1, width - from, team, [&](int k, int) { return part.v[k]; });
        } else {
            part.load(x + from, 1, width - from, team, (A)0);
        }
#pragma unroll
        for (int k = 0; k < part.count; ++k) m += part.v[k];
    }
    bool held = width <= part.span(team);
    m = mean ? team_fold<Sum>(m, team, room) / (A)width : (A)0;
    for (i64 from = 0; from < width; from += part.span(team)) {
        if (!held) part.load(x + from, 1, width - from, team, (A)0);
        part.each(width - from, team, [&](int k, int) {
#pragma unroll
            for (int j = 0; j < N; ++j) square += (part.v[k + j] - m) * (part.v[k + j] - m);
        });
    }
    A r = (A)1 / sqrt(team_fold<Sum>(square, team, room) / (A)width + (A)eps);
    Affine affine(inner, groups, team.row, width);
    for (i64 from = 0; from < width; from += part.span(team)) {
        if (!held) part.load(x + from, 1, width - from, team, (A)0);
        part.each(width - from, team, [&](int k, int at) {
            A factor[N], level[N];
            Pack<T, N> made;
            i64 place = affine.at(from + at);
            given(weight, place, inner, (A)1, factor);
            given(bias, place, inner, (A)0, level);
#pragma unroll
            for (int j = 0; j < N; ++j) made.of[j] = (T)affine_of((part.v[k + j] - m) * r, weight, factor[j], bias, level[j]);
            *(Pack<T, N>*)(out + from + at) = made;
        });
    }
    if (team.rank) return;
    rstd[team.row] = r;
    if (mean) mean[team.row] = m;
}

// (x - mean) rstd weight + bias, for given mean and rstd. The statistics and the affine map belong to the rows and the
// columns of [rows, width], or both belong to channels: then `inner` elements share one of `channels` (0 for rows). N neighbors
// are in one row.
// With `relu`, relu is applied to the rounded result, where NaN stays NaN; with `dy`, the result is the gradient of relu for that
// cotangent.
template <typename T, int N>
__global__ void affine(const T* x, const void* weight, const void* bias, const WIDE(T)* mean, const WIDE(T)* rstd, T* out, i64 n,
                       i64 inner, i64 channels, int wide, int relu, const T* dy) {
    typedef WIDE(T) A;
    EACH(i, n / N) {
        i64 row = n < (i64)1 << 32 ? (i64)((u32)(i * N) / (u32)inner) : i * N / inner, column = i * N - row * inner;
        if (channels) row = column = row < (i64)1 << 32 ? (i64)((u32)row % (u32)channels) : row % channels;
        A m = mean[row], r = rstd[row], factor[N], level[N];
        Pack<T, N> v = *(const Pack<T, N>*)(x + i * N), g;
        if (dy) g = *(const Pack<T, N>*)(dy + i * N);
        if (channels) {
            A one = weight ? of_channel<T>(weight, column, wide) : (A)1, other = bias ? of_channel<T>(bias, column, wide) : (A)0;
#pragma unroll
            for (int k = 0; k < N; ++k) factor[k] = one, level[k] = other;
        } else {
            given((const T*)weight, column, false, (A)1, factor);
            given((const T*)bias, column, false, (A)0, level);
        }
#pragma unroll
        for (int k = 0; k < N; ++k) {
            T made = (T)affine_of(((A)v.of[k] - m) * r, weight, factor[k], bias, level[k]);
            v.of[k] = through_relu<A>(made, relu, dy, g.of[k]);
        }
        *(Pack<T, N>*)(out + i * N) = v;
    }
}
