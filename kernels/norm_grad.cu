// The gradients of layer, group and RMS norm, a team of threads per row. RMS norm is layer norm without a mean, which is null, and
// without biases.
//
// Traffic in bytes, n elements of s: dx reads 2 n s and writes n s. The gradients of weight and bias read 2 n s again, unless
// layer_norm_grads computes them with dx; their partial sums lie in the workspace. An output that is recomputed with dx writes n s
// more. Those of group norm read 2 n s again and write two numbers per channel of each sample.
// For papers see norm.cu.

#include "common.cuh"
#include "arrivals.cuh"
#include "row_dx.cuh"

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

// Adds up what the `parts` blocks of a launch have stored in made[arrays, parts, width], N columns in an access. The last to arrive
// of `each` neighbors adds up theirs, and the last of these what they have, since one block alone would take long for many.
template <typename T, int N>
__device__ __forceinline__ void meet(WIDE(T)* made, T* dweight, T* dbias, int width, int parts, int each, Shared* shared) {
    typedef WIDE(T) A;
    __shared__ Pack<A, N> room[256];
    int group = blockIdx.x / each, groups = (parts + each - 1) / each, from = group * each;
    int count = parts - from < each ? parts - from : each;
    if (!last_of(shared->arrivals + 1, group, count)) return;
    // Threads that the columns leave free take some of the parts.
    int slots = (dbias ? 2 : 1) * width / N, slices = slots > 128 ? 1 : 256 / slots;
    int slice = slices > 1 ? threadIdx.x / slots : 0, first = threadIdx.x - slice * slots;
    bool last = groups == 1;
    for (int end = from + count, step = 1;; from = 0, end = parts, step = each, last = true) {
        for (int slot = first; slot < slots; slot += 256) {
            bool weights = slot * N < width;
            int at = weights ? slot * N : slot * N - width;
            A* part = made + (weights ? at : parts * width + at);
            Pack<A, N> sum = {};
#pragma unroll 8
            for (int k = slice < slices ? from + slice * step : end; k < end; k += slices * step) {
                Pack<A, N> next = *(const Pack<A, N>*)(part + k * width);
#pragma unroll
                for (int j = 0; j < N; ++j) sum.of[j] += next.of[j];
            }
            if (slices > 1) {
                room[threadIdx.x] = sum;
                __syncthreads();
                if (slice) break;
                for (int k = 1; k < slices; ++k) {
#pragma unroll
                    for (int j = 0; j < N; ++j) sum.of[j] += room[k * slots + slot].of[j];
                }
            }
            if (!last) *(Pack<A, N>*)(part + from * width) = sum;
#pragma unroll
            for (int j = 0; j < N; ++j)
                if (last) (weights ? dweight : dbias)[at + j] = (T)sum.of[j];
        }
        if (last || !last_of(shared->arrivals, 0, groups)) return;
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

// Rows that a team handles at once, by a thread's accesses to each and their bytes: 8 accesses or more are then on their way.
constexpr int rows_at_once(int accesses, int nbytes) { return nbytes > 32 ? 1 : nbytes > 16 || accesses > 2 ? 2 : 4; }

// Blocks on a multiprocessor for which there are registers.
constexpr int blocks_with(int nbytes, int parts, int neighbors) {
    return parts > 1 || nbytes > 16 || neighbors < 4 ? 2 : 3;
}

// Sums of some values over a team, by one barrier: `room` alternates between two.
template <int some, typename A>
__device__ __forceinline__ void fold_all(A (&v)[some], const Team& team, A (&room)[8][some]) {
    for (int offset = team.farthest(); offset; offset >>= 1) {
#pragma unroll
        for (int k = 0; k < some; ++k) v[k] += __shfl_xor_sync(0xffffffffu, v[k], offset);
    }
    if (team.lanes <= 32) return;
#pragma unroll
    for (int k = 0; k < some; ++k)
        if (!(threadIdx.x & 31)) room[threadIdx.x >> 5][k] = v[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < some; ++k) v[k] = room[0][k];
    for (int warp = 1; warp < 8; ++warp) {
#pragma unroll
        for (int k = 0; k < some; ++k) v[k] += room[warp][k];
    }
}

// dx, and the gradients of weight and bias, of the rows of one of `parts` blocks. Each thread of a team, a warp or a block, makes K
// accesses to a row or, of a block, to each of a row's C parts, and adds up the same columns of all rows that the team takes. Of the
// blocks, `neighbors` meet first.
template <typename T, int N, int K, int C>
__global__ void __launch_bounds__(256, blocks_with(N * K * sizeof(WIDE(T)), C, N))
layer_norm_grads(const T* dy, const T* x, const T* weight, const T* bias, const WIDE(T)* mean, const WIDE(T)* rstd, T* dx, T* again,
                 WIDE(T)* made, T* dweight, T* dbias, i64 rows, i64 width, int parts, int added, int lanes, int neighbors,
                 Shared* shared) {
    typedef WIDE(T) A;
    typedef Part<T, N, K> P;
    constexpr int R = rows_at_once(K, P::count * sizeof(A));
    P w[C], b[C];
    __shared__ A rooms[2][8][2 * R], sums[C > 1 ? 1 : 8][P::count][32];
    Team team(lanes);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, teams = 256 / lanes;
    i64 each = (rows + parts - 1) / parts, first = each * blockIdx.x, end = first + each < rows ? first + each : rows;
    first += team.row % teams;
#pragma unroll
    for (int k = 0; k < C * P::count; ++k) w[k / P::count].v[k % P::count] = b[k / P::count].v[k % P::count] = 0;
    auto seen = [&](const P& g, const P& hat, int part) {
#pragma unroll
        for (int k = 0; k < P::count; ++k) w[part].v[k] += g.v[k] * hat.v[k], b[part].v[k] += g.v[k];
    };
    if (C > 1) {
        // A team that is known to be a block takes fewer registers.
        for (i64 row = first; row < end; row += teams)
            row_dx<P, C>(dy, x, weight, bias, mean, rstd, dx, again, row, width, Affine(0, 0, 0, 0), added, Team(256), rooms[0][0],
                         seen);
    } else {
        int turn = 0;
        for (i64 row = first; row < end; row += R * teams, turn ^= 1) {
            P g[R], hat[R];
            A m[R], r[R], both[2 * R];
#pragma unroll
            for (int i = 0; i < R; ++i) {
                i64 own = row + i * teams, there = own < end ? width : 0;
                g[i].load(dy + own * width, 1, there, team, (A)0);
                hat[i].load(x + own * width, 1, there, team, (A)0);
                m[i] = there && mean ? mean[own] : (A)0, r[i] = there ? rstd[own] : (A)0;
            }
#pragma unroll
            for (int i = 0; i < R; ++i) {
#pragma unroll
                for (int k = 0; k < P::count; ++k) hat[i].v[k] = (hat[i].v[k] - m[i]) * r[i];
                seen(g[i], hat[i], 0);
            }
            if (weight)
                P::each(width, team, [&](int k, int at) {
                    A factor[N];
                    given(weight, at, false, (A)1, factor);
#pragma unroll
                    for (int j = 0; j < R * N; ++j) g[j / N].v[k + j % N] *= factor[j % N];
                });
#pragma unroll
            for (int i = 0; i < R; ++i) {
                both[2 * i] = both[2 * i + 1] = 0;
#pragma unroll
                for (int k = 0; k < P::count; ++k) both[2 * i] += g[i].v[k], both[2 * i + 1] += g[i].v[k] * hat[i].v[k];
            }
            fold_all(both, team, rooms[turn]);
#pragma unroll
            for (int i = 0; i < R; ++i) {
                i64 own = row + i * teams;
                if (own < end)
                    store_dx(g[i], hat[i], rstd[own], mean ? both[2 * i] / (A)width : (A)0, both[2 * i + 1] / (A)width, weight, bias,
                             dx + own * width, again ? again + own * width : again, 0, width, added, team);
            }
        }
    }
    constexpr int V = N * sizeof(A) > 16 ? 16 / sizeof(A) : N;
    auto keep = [&](int array, i64 at, const A (&sum)[N]) {
#pragma unroll
        for (int j = 0; j < N; j += V) {
            Pack<A, V> some;
#pragma unroll
            for (int k = 0; k < V; ++k) {
                some.of[k] = sum[j + k];
                if (parts == 1) (array ? dbias : dweight)[at + j + k] = (T)some.of[k];
            }
            if (parts > 1) *(Pack<A, V>*)(made + (array * parts + (i64)blockIdx.x) * width + at + j) = some;
        }
    };
#pragma unroll
    for (int array = 0; array < 2; ++array) {
        if (array && !dbias) break;
        if (teams == 1) {
#pragma unroll
            for (int part = 0; part < C; ++part) {
                const P& own = array ? b[part] : w[part];
                i64 from = part * (i64)P::span(team);
                P::each(width - from, team, [&](int k, int at) {
                    A sum[N];
#pragma unroll
                    for (int j = 0; j < N; ++j) sum[j] = own.v[k + j];
                    keep(array, from + at, sum);
                });
            }
        } else {
            // All warps have the same columns.
            if (array) __syncthreads();
#pragma unroll
            for (int k = 0; k < P::count; ++k) sums[C > 1 ? 0 : warp][k][lane] = array ? b[0].v[k] : w[0].v[k];
            __syncthreads();
            int at = threadIdx.x * N;
            if (at >= width) continue;
            A sum[N] = {};
#pragma unroll
            for (int k = 0; k < 8; ++k) {
#pragma unroll
                for (int j = 0; j < N; ++j) sum[j] += sums[C > 1 ? 0 : k][warp * N + j][lane];
            }
            keep(array, at, sum);
        }
    }
    if (parts > 1) meet<T, V>(made, dweight, dbias, (int)width, parts, neighbors, shared);
}
