// Layer, group and RMS norm and their gradients, a team of threads per row; and the affine map of all norms for given statistics.
// RMS norm is layer norm without a mean, which is null, and without biases.
//
// Traffic in bytes, n elements of s: layer and RMS norm read n s (twice more if a row does not fit in registers), write n s and
// two numbers per row, and read and write n s more if layer norm computes a sum first. dx reads 2 n s and writes n s. The
// gradients of weight and bias read 2 n s again, unless layer_norm_grads computes them with dx; their partial sums lie in the
// workspace. An output that is recomputed with dx writes n s more. Those of group norm read 2 n s again and write two numbers per
// channel of each sample. affine reads and writes n s, and reads n s more if it also computes the gradient of relu.
// Ba, Kiros and Hinton, arXiv:1607.06450; Wu and He, arXiv:1803.08494; Zhang and Sennrich, arXiv:1910.07467.

#include "common.cuh"
#include "arrivals.cuh"
#include "norm.cuh"
#include "rows.cuh"

// The values for N neighbours: one element for all of them, or N elements; `none` if there is no tensor.
template <int N, typename A, typename T>
__device__ __forceinline__ void given(const T* x, i64 at, bool same, A none, A (&made)[N]) {
    Pack<T, N> found;
    if (x && !same) found = *(const Pack<T, N>*)(x + at);
#pragma unroll
    for (int k = 0; k < N; ++k) made[k] = !x ? none : same ? (A)x[at] : (A)found.of[k];
}

// Where a row's weights and biases lie: one for each column, or, if `inner` is not 0, one for each channel of so many columns. Then
// a row is one of `groups` of channels, and N neighbours are in one channel.
struct Affine {
    i64 inner, first;
    __device__ __forceinline__ Affine(i64 inner, i64 groups, i64 row, i64 width)
        : inner(inner), first(inner ? row % groups * (width / inner) : 0) {}
    __device__ __forceinline__ i64 at(i64 column) const {
        if (!inner) return column;
        return first + (column < (i64)1 << 32 ? (i64)((u32)column / (u32)inner) : column / inner);
    }
};

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
// columns of [rows, width], or both belong to channels: then `inner` elements share one of `channels` (0 for rows). N neighbours
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

// rstd (g - mean(g) - hat mean(g hat)), with g = dy weight and hat = (x - mean) rstd, of one row, whose weights lie as `affine` says;
// without mean(g) in RMS norm; with `added`, added to dx. With `again`, the norm's output, recomputed with `bias`, is stored there,
// but not in double precision. A row has at most C parts of the type P, or any number if C is 0. `seen` is called with each part of dy
// and of hat, which are 0 beyond the row, and its number.
template <typename P, int C, typename T, typename F>
__device__ __forceinline__ void row_dx(const T* dy, const T* x, const T* weight, const T* bias, const WIDE(T)* mean, const WIDE(T)* rstd,
                                       T* dx, T* again, i64 row, i64 width, const Affine& affine, int added, const Team& team,
                                       WIDE(T)* room, F seen) {
    typedef WIDE(T) A;
    dy += row * width;
    x += row * width;
    dx += row * width;
    A m = mean ? mean[row] : (A)0, r = rstd[row], level = 0, slope = 0;
    constexpr int N = P::neighbours;
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
        g.each(width - from, team, [&](int k, int at) {
            Pack<T, N> old, made;
            if (added) old = *(const Pack<T, N>*)(dx + from + at);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                made.of[j] = (T)((g.v[k + j] - level - hat.v[k + j] * slope) * r);
                if (added) made.of[j] = (T)plus((A)old.of[j], (A)made.of[j]);
            }
            *(Pack<T, N>*)(dx + from + at) = made;
            // There are not enough registers for it in double precision, and for weights in the precision of the computation.
            if (sizeof(A) > 4 || !again) return;
            if (weight) old = *(const Pack<T, N>*)(weight + from + at);
            if (bias) made = *(const Pack<T, N>*)(bias + from + at);
#pragma unroll
            for (int j = 0; j < N; ++j) made.of[j] = (T)affine_of(hat.v[k + j], weight, (A)old.of[j], bias, (A)made.of[j]);
            *(Pack<T, N>*)(again + row * width + from + at) = made;
        });
        if (C == 1) break;
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(256, 2)
layer_norm_dx(const T* dy, const T* x, const T* weight, const T* bias, const WIDE(T)* mean, const WIDE(T)* rstd, T* dx, T* again,
              i64 rows, i64 width, i64 inner, i64 groups, int added, int lanes) {
    __shared__ WIDE(T) room[8];
    Team team(lanes);
    if (team.row >= rows) return;
    row_dx<Part<T, N>, 0>(dy, x, weight, bias, mean, rstd, dx, again, team.row, width, Affine(inner, groups, team.row, width), added,
                          team, room, [](const auto&, const auto&, int) {});
}

// The contribution of one row to the gradients of weight and bias at a column.
template <typename T>
__device__ __forceinline__ void add_slopes(const T* dy, const T* x, const WIDE(T)* mean, const WIDE(T)* rstd, i64 row, i64 width,
                                           i64 column, WIDE(T)& w, WIDE(T)& b) {
    typedef WIDE(T) A;
    A g = (A)dy[row * width + column];
    w += g * (((A)x[row * width + column] - (mean ? mean[row] : (A)0)) * rstd[row]);
    b += g;
}

// Stores one of `parts` sums of a column in made[2, parts, width], or [parts, width] without a bias; a single one is the result.
template <typename T>
__device__ __forceinline__ void keep_slopes(WIDE(T)* made, T* dweight, T* dbias, i64 part, int parts, i64 width, i64 column,
                                            WIDE(T) w, WIDE(T) b) {
    if (parts == 1) {
        dweight[column] = (T)w;
        if (dbias) dbias[column] = (T)b;
    } else {
        made[part * width + column] = w;
        if (dbias) made[(parts + part) * width + column] = b;
    }
}

// Adds the sums of a column from `from` on, `step` apart, to w and b.
template <typename A>
__device__ __forceinline__ void take_slopes(const A* made, bool biased, int from, int end, int step, int parts, i64 width, i64 column,
                                            A& w, A& b) {
#pragma unroll 8
    for (int k = from; k < end; k += step) {
        w += made[k * width + column];
        if (biased) b += made[(parts + k) * width + column];
    }
}

// Adds up what the `parts` blocks of a launch have stored. The last to arrive of `each` neighbours adds up theirs, and the last of
// these what they have, since one block alone would take long for many.
template <typename T>
__device__ __forceinline__ void meet(WIDE(T)* made, T* dweight, T* dbias, i64 width, int parts, int each, Shared* shared) {
    int group = blockIdx.x / each, groups = (parts + each - 1) / each, from = group * each;
    int count = parts - from < each ? parts - from : each;
    if (!last_of(shared->arrivals + 1, group, count)) return;
    auto add = [&](int from, int end, int step, int parts_of_result) {
        for (i64 column = threadIdx.x; column < width; column += 256) {
            WIDE(T) w = 0, b = 0;
            take_slopes(made, dbias, from, end, step, parts, width, column, w, b);
            keep_slopes(made, dweight, dbias, from, parts_of_result, width, column, w, b);
        }
    };
    add(from, from + count, 1, groups > 1 ? parts : 1);
    if (groups > 1 && last_of(shared->arrivals, 0, groups)) add(0, parts, each, 1);
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
template <typename T>
__global__ void affine_parts(const T* dy, const T* x, const WIDE(T)* mean, const WIDE(T)* rstd, WIDE(T)* made, T* dweight, T* dbias,
                             i64 rows, i64 width, int parts, Shared* shared) {
    i64 tile = blockIdx.x / parts, part = blockIdx.x % parts, column = tile * 32 + (threadIdx.x & 31);
    i64 each = (rows + parts - 1) / parts, end = each * (part + 1) < rows ? each * (part + 1) : rows;
    bool first = threadIdx.x < 32 && column < width;
    WIDE(T) w = 0, b = 0;
    if (column < width)
        for (i64 row = each * part + (threadIdx.x >> 5); row < end; row += 8)
            add_slopes(dy, x, mean, rstd, row, width, column, w, b);
    fold_warps(w, b);
    if (first) keep_slopes(made, dweight, dbias, part, parts, width, column, w, b);
    if (parts == 1 || !last_of(shared->arrivals, tile, parts)) return;
    w = b = 0;
    if (column < width) take_slopes(made, dbias, threadIdx.x >> 5, parts, 8, parts, width, column, w, b);
    fold_warps(w, b);
    if (first) keep_slopes<T>(nullptr, dweight, dbias, 0, 1, width, column, w, b);
}

// Sums of what group_slopes stores for `parts` samples.
template <typename T>
__global__ void affine_total(const WIDE(T)* made, T* dweight, T* dbias, i64 width, int parts) {
    i64 column = (i64)blockIdx.x * 32 + (threadIdx.x & 31);
    WIDE(T) w = 0, b = 0;
    if (column < width) take_slopes(made, dbias, threadIdx.x >> 5, parts, 8, parts, width, column, w, b);
    fold_warps(w, b);
    if (threadIdx.x < 32 && column < width) keep_slopes<T>(nullptr, dweight, dbias, 0, 1, width, column, w, b);
}

// Sums of dy hat and of dy over each channel of each sample, in made[2, rows] for affine_total; `each` channels share statistics.
template <typename T, int N>
__global__ void group_slopes(const T* dy, const T* x, const WIDE(T)* mean, const WIDE(T)* rstd, WIDE(T)* made, i64 rows, i64 width,
                             i64 each, int lanes) {
    typedef WIDE(T) A;
    __shared__ A room[8];
    Team team(lanes);
    if (team.row >= rows) return;
    A m = mean[team.row / each], r = rstd[team.row / each], w = 0, b = 0;
    Part<T, N> g, v;
    for (i64 from = 0; from < width; from += g.span(team)) {
        g.load(dy + team.row * width + from, 1, width - from, team, (A)0);
        v.load(x + team.row * width + from, 1, width - from, team, (A)0);
        g.each(width - from, team, [&](int k, int) {
#pragma unroll
            for (int j = 0; j < N; ++j) w += g.v[k + j] * ((v.v[k + j] - m) * r), b += g.v[k + j];
        });
    }
    w = team_fold<Sum>(w, team, room);
    b = team_fold<Sum>(b, team, room);
    if (!team.rank) made[team.row] = w, made[rows + team.row] = b;
}

// dx, and the gradients of weight and bias, of the rows of one of `parts` blocks. Each thread of a team, a warp or a block, makes K
// accesses to each of a row's C parts, and adds up the same columns of all rows that the team takes. Of the blocks, `neighbours` meet
// first.
template <typename T, int N, int K, int C>
__global__ void __launch_bounds__(256, 2)
layer_norm_grads(const T* dy, const T* x, const T* weight, const T* bias, const WIDE(T)* mean, const WIDE(T)* rstd, T* dx, T* again,
                 WIDE(T)* made, T* dweight, T* dbias, i64 rows, i64 width, int parts, int added, int lanes, int neighbours,
                 Shared* shared) {
    typedef WIDE(T) A;
    typedef Part<T, N, K> P;
    P w[C], b[C];
    __shared__ A room[8], half[4][2 * P::count][32];
    Team team(lanes);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, teams = 256 / lanes;
    i64 each = (rows + parts - 1) / parts, first = each * blockIdx.x, end = first + each < rows ? first + each : rows;
#pragma unroll
    for (int k = 0; k < C * P::count; ++k) w[k / P::count].v[k % P::count] = b[k / P::count].v[k % P::count] = 0;
    for (i64 row = first + team.row % teams; row < end; row += teams)
        row_dx<P, C>(dy, x, weight, bias, mean, rstd, dx, again, row, width, Affine(0, 0, 0, 0), added, team, room,
                     [&](const P& g, const P& hat, int part) {
#pragma unroll
                         for (int k = 0; k < P::count; ++k) w[part].v[k] += g.v[k] * hat.v[k], b[part].v[k] += g.v[k];
                     });
#pragma unroll
    for (int part = 0; part < C; ++part) {
        // The sums of eight warps, by halves.
        for (int some = teams / 2; some; some /= 2) {
            __syncthreads();
#pragma unroll
            for (int k = 0; k < P::count; ++k)
                if (warp >= some && warp < 2 * some)
                    half[warp - some][k][lane] = w[part].v[k], half[warp - some][P::count + k][lane] = b[part].v[k];
            __syncthreads();
#pragma unroll
            for (int k = 0; k < P::count; ++k)
                if (warp < some) w[part].v[k] += half[warp][k][lane], b[part].v[k] += half[warp][P::count + k][lane];
        }
        i64 from = part * (i64)P::span(team);
        if (threadIdx.x < lanes)
            P::each(width - from, team, [&](int k, int at) {
#pragma unroll
                for (int j = 0; j < N; ++j)
                    keep_slopes(made, dweight, dbias, blockIdx.x, parts, width, from + at + j, w[part].v[k + j], b[part].v[k + j]);
            });
    }
    if (parts > 1) meet(made, dweight, dbias, width, parts, neighbours, shared);
}
