// The gradient of a norm of a row, held by a team of threads, with respect to its input.

#include "norm.cuh"
#include "rows.cuh"

// Stores rstd (g - level - hat slope) of a part of a row, or with `added` adds it to dx. With `again`, the norm's output, recomputed
// with `bias`, is stored there, but not in double precision. The part begins at column `from`.
template <typename P, typename T>
__device__ __forceinline__ void store_dx(const P& g, const P& hat, WIDE(T) r, WIDE(T) level, WIDE(T) slope, const T* weight,
                                         const T* bias, T* dx, T* again, i64 from, i64 width, int added, const Team& team) {
    typedef WIDE(T) A;
    constexpr int N = P::neighbors;
    g.each(width - from, team, [&](int k, int place) {
        i64 at = from + place;
        Pack<T, N> old, made;
        if (added) old = *(const Pack<T, N>*)(dx + at);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            made.of[j] = (T)((g.v[k + j] - level - hat.v[k + j] * slope) * r);
            if (added) made.of[j] = (T)plus((A)old.of[j], (A)made.of[j]);
        }
        *(Pack<T, N>*)(dx + at) = made;
        // There are not enough registers for it in double precision, and for weights in the precision of the computation.
        if (sizeof(A) > 4 || !again) return;
        if (weight) old = *(const Pack<T, N>*)(weight + at);
        if (bias) made = *(const Pack<T, N>*)(bias + at);
#pragma unroll
        for (int j = 0; j < N; ++j) made.of[j] = (T)affine_of(hat.v[k + j], weight, (A)old.of[j], bias, (A)made.of[j]);
        *(Pack<T, N>*)(again + at) = made;
    });
}

// rstd (g - mean(g) - hat mean(g hat)), with g = dy weight and hat = (x - mean) rstd, of one row, whose weights lie as `affine` says;
// without mean(g) in RMS norm; stored as by store_dx. A row has at most C parts of the type P, or any number if C is 0. `seen` is
// called with each part of dy and of hat, which are 0 beyond the row, and its number.
template <typename P, int C, typename T, typename F>
__device__ __forceinline__ void row_dx(const T* dy, const T* x, const T* weight, const T* bias, const WIDE(T)* mean, const WIDE(T)* rstd,
                                       T* dx, T* again, i64 row, i64 width, const Affine& affine, int added, const Team& team,
                                       WIDE(T)* room, F seen) {
    typedef WIDE(T) A;
    dy += row * width;
    x += row * width;
    dx += row * width;
    if (again) again += row * width;
    A m = mean ? mean[row] : (A)0, r = rstd[row], level = 0, slope = 0;
    constexpr int N = P::neighbors;
    P g, hat;
    auto load = [&](i64 from, int part) {
        g.load(dy + from, 1, width - from, team, (A)0);
        hat.load(x + from, 1, width - from, team, m);
#pragma unroll
        for (int k = 0; k < hat.count; ++k) hat.v[k] = (hat.v[k] - m) * r;
        if (part >= 0) seen(g, hat, part);
        if (weight)
            g.each(width - from, team, [&](int k, int at) {
                A factor[N];
                given(weight, affine.at(from + at), affine.inner, (A)1, factor);
#pragma unroll
                for (int j = 0; j < N; ++j) g.v[k + j] *= factor[j];
            });
    };
#pragma unroll C ? C : 1
    for (int part = 0; C ? part < C : part * (i64)g.span(team) < width; ++part) {
        if (part * (i64)g.span(team) >= width) break;
        load(part * (i64)g.span(team), part);
#pragma unroll
        for (int k = 0; k < g.count; ++k) level += g.v[k], slope += g.v[k] * hat.v[k];
    }
    level = mean ? team_fold<Sum>(level, team, room) / (A)width : (A)0;
    slope = team_fold<Sum>(slope, team, room) / (A)width;
    for (i64 from = 0; from < width; from += g.span(team)) {
        if (C != 1 && width > g.span(team)) load(from, -1);
        store_dx(g, hat, r, level, slope, weight, bias, dx, again, from, width, added, team);
        if (C == 1) break;
    }
}
