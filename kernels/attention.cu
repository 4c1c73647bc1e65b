// Scaled dot-product attention and its gradients. The scores never leave the multiprocessor.
//
// A block takes some queries (or keys) of one head and loops over some keys (queries) at a time. A row's maximum and sum are
// reduced within a warp, online (Dao et al., FlashAttention, arXiv:2205.14135; Milakov and Gimelshein, arXiv:1805.02867).
// Floats of 16 bits are multiplied on tensor cores (attention_cores.cuh); the others here, with a lane for each of 32 keys
// (queries).
//
// Traffic in bytes per head, L queries and S keys of width E in elements of s: forward reads L E s, and 2 S E s for each 32
// queries (64 on tensor cores), from cache if a head's keys fit; it writes L E s and a number per query. Backward reads 4 L E s,
// 2 S E s for each 16 queries (64), and 2 S E s, and 4 L E s (5 of 512 bytes a row) for each 16 keys (64), and writes each
// gradient once. Causal attention skips the masked half. The dropout mask is drawn by forward and drawn again by each gradient.
// W is a power of two, at least 32, that holds the widths of keys and values.

#include "attention.cuh"
#include "attention_cores.cuh"

// Rows that lanes read one each have N elements more, so that accesses of 16 bytes by neighboring lanes use different banks.
template <typename A> struct Access { static const int N = 16 / sizeof(A); };
// Does shared memory hold keys and values at the same time?
template <typename A, int W> struct Rooms { static const bool BOTH = sizeof(A) * W <= 256; };

// The dot products of this lane's row with each of the warp's R rows.
template <int R, int W, int Pitch, int Ours, typename A>
__device__ __forceinline__ void scores(const A (&rows)[32][Pitch], const A (&own)[Ours][W], A (&made)[R], i64 width) {
    const int N = Access<A>::N;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < R; ++i) made[i] = 0;
#pragma unroll 1
    for (int e = 0; e < width; e += N) {
        Pack<A, N> other = *(const Pack<A, N>*)&rows[lane][e];
#pragma unroll
        for (int i = 0; i < R; ++i) {
            Pack<A, N> mine = *(const Pack<A, N>*)&own[warp * R + i][e];
#pragma unroll
            for (int k = 0; k < N; ++k) made[i] += mine.of[k] * other.of[k];
        }
    }
}

// Adds 32 rows, each times its weight, to the sums of each of the warp's R rows. A warp reads only weights that it wrote.
template <int R, int Columns, int Pitch, int Ours, typename A>
__device__ __forceinline__ void gather(const A (&rows)[32][Pitch], const A (&weights)[Ours][32], A (&sums)[R][Columns]) {
    const int N = Access<A>::N;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll 1
    for (int j = 0; j < 32; j += N) {
        A other[N][Columns];
#pragma unroll
        for (int k = 0; k < N; ++k)
#pragma unroll
            for (int c = 0; c < Columns; ++c) other[k][c] = rows[j + k][lane + 32 * c];
#pragma unroll
        for (int i = 0; i < R; ++i) {
            Pack<A, N> weight = *(const Pack<A, N>*)&weights[warp * R + i][j];
#pragma unroll
            for (int k = 0; k < N; ++k)
#pragma unroll
                for (int c = 0; c < Columns; ++c) sums[i][c] += weight.of[k] * other[k][c];
        }
    }
}

template <int R, int Columns, typename A, typename T>
__device__ __forceinline__ void leave(T* x, const i64 (&strides)[4], i64 start, i64 positions, i64 width,
                                      const A (&sums)[R][Columns], const A (&scale)[R]) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
        for (int c = 0; c < Columns; ++c) {
            i64 row = start + warp * R + i, e = lane + 32 * c;
            if (row < positions && e < width) x[row * strides[2] + e * strides[3]] = (T)(sums[i][c] * scale[i]);
        }
}

// The result for 32 queries; q, k, v, mask, out and lse are those of the head, which is `head` of all.
template <typename T, int W>
__device__ __forceinline__ void attend(i64 head, i64 start, const T* q, const T* k, const T* v, const T* mask, const u64* state,
                                       T* out, WIDE(T)* lse, const Attention& a) {
    typedef WIDE(T) A;
    const int R = 8, N = Access<A>::N;
    const bool BOTH = Rooms<A, W>::BOTH;
    alignas(16) __shared__ A own[4 * R][W], rows[1 + BOTH][32][W + N], weights[4 * R][32];
    __shared__ u32 kept[4 * R][4];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    auto plain = [](T x) { return (A)x; };
    fetch<W>(own, q, a.q, start, a.length, a.width, a.whole, [&](T x) { return (A)x * (A)a.scale; });
    A top[R], total[R], s[R], sums[R][W / 32] = {};
#pragma unroll
    for (int i = 0; i < R; ++i) top[i] = -infinity<A>(), total[i] = 0;
    i64 seen = a.causal && start + 4 * R < a.keys ? start + 4 * R : a.keys;
    for (i64 first = 0; first < seen; first += 32) {
        __syncthreads();
        fetch<W>(rows[0], k, a.k, first, a.keys, a.width, a.whole, plain);
        if (BOTH) fetch<W>(rows[BOTH], v, a.v, first, a.keys, a.values, a.whole, plain);
        draw_kept(kept, state, a, head * a.length + start, first / 8);
        __syncthreads();
        scores<R>(rows[0], own, s, a.width);
        bool edge = at_an_edge(mask, a, start, 4 * R, first, 32);
#pragma unroll
        for (int i = 0; i < R; ++i) {
            if (edge) s[i] = masked(s[i], mask, a, start + warp * R + i, first + lane);
            A most = s[i];
            for (int offset = 16; offset; offset >>= 1) most = Most::of(most, (A)__shfl_xor_sync(0xffffffffu, most, offset));
            most = Most::of(top[i], most);
            // Only masked scores so far: there is no maximum to subtract.
            A level = most == -infinity<A>() ? (A)0 : most, shrink = exp(top[i] - level), p = exp(s[i] - level);
            total[i] = total[i] * shrink + p;  // of this lane's keys
            top[i] = most;
            if (state) p *= left_of<A>(kept[warp * R + i], a, lane);
            weights[warp * R + i][lane] = p;
#pragma unroll
            for (int c = 0; c < W / 32; ++c) sums[i][c] *= shrink;
        }
        if (!BOTH) {
            __syncthreads();
            fetch<W>(rows[0], v, a.v, first, a.keys, a.values, a.whole, plain);
            __syncthreads();
        } else __syncwarp();
        gather(rows[BOTH], weights, sums);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) {
        i64 row = start + warp * R + i;
        for (int offset = 16; offset; offset >>= 1) total[i] += __shfl_xor_sync(0xffffffffu, total[i], offset);
        if (!lane && row < a.length) lse[row] = lse_of(top[i], total[i], a);
        total[i] = total[i] == (A)0 ? (A)0 : (A)1 / total[i];
    }
    leave(out, a.out, start, a.length, a.values, sums, total);
}

// A block's queries, or keys.
template <typename T> struct Own { static const int FORWARD = sizeof(T) == 2 ? 64 : 32, BACKWARD = sizeof(T) == 2 ? 64 : 16; };
// Are elements of this type multiplied on tensor cores?
template <typename T> struct OnCores { static const bool IS = HAS_CORES && sizeof(T) == 2; };
// Blocks at once that registers have room for; the sums are held in them.
template <typename T, int W>
__device__ __forceinline__ constexpr int resident() { return W > 64 || sizeof(T) == 8 ? 2 : W <= 32 && OnCores<T>::IS ? 4 : 3; }

template <typename T, int W>
__global__ void __launch_bounds__(128, resident<T, W>())
attention(const T* q, const T* k, const T* v, const T* mask, const u64* state, T* out, WIDE(T)* lse,
          const __grid_constant__ Attention a) {
    const int ROWS = Own<T>::FORWARD;
    // The last queries first: causal ones see most keys.
    i64 tiles = (a.length + ROWS - 1) / ROWS, start = (tiles - 1 - blockIdx.x % tiles) * ROWS, head = blockIdx.x / tiles;
    q = head_of(q, a.q, head, a);
    k = head_of(k, a.k, head, a);
    v = head_of(v, a.v, head, a);
    mask = head_of(mask, a.mask, head, a);
    out = head_of(out, a.out, head, a);
    lse += head * a.length;
    if constexpr (OnCores<T>::IS) attend_on_cores<T, W>(head, start, q, k, v, mask, state, out, lse, a);
    else
        for (i64 end = start + ROWS; start < end && start < a.length; start += 32, __syncthreads())
            attend<T, W>(head, start, q, k, v, mask, state, out, lse, a);
}

// The shared memory of a gradient's block: 16 rows of its own and 32 of the others; for those that are queries, also deltas and
// kept scores.
template <typename A, int W, int Rows>
struct Held {
    alignas(16) A own[16][W], slope[16][W], rows[1 + Rooms<A, W>::BOTH][32][W + Access<A>::N], weights[16][32], delta[Rows];
    u32 kept[Rows][64 / Rows];
};

// dq of 16 queries of a head.
template <typename T, int W>
__device__ __forceinline__ void gradient_of_queries(Held<WIDE(T), W, 16>& held, i64 head, i64 start, const T* dy, const T* q,
                                                    const T* k, const T* v, const T* mask, const T* out, const WIDE(T)* lse,
                                                    const u64* state, T* dq, const Attention& a) {
    typedef WIDE(T) A;
    const int R = 4;
    const bool BOTH = Rooms<A, W>::BOTH;
    auto& [own, slope, rows, weights, delta, kept] = held;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    auto plain = [](T x) { return (A)x; };
    fetch<W>(own, q, a.q, start, a.length, a.width, a.whole, [&](T x) { return (A)x * (A)a.scale; });
    fetch<W>(slope, dy, a.dy, start, a.length, a.values, a.whole, plain);
    slopes(delta, dy, out, a, start);
    A s[R], g[R], scale[R], level[R], sums[R][W / 32] = {};
#pragma unroll
    for (int i = 0; i < R; ++i) level[i] = start + warp * R + i < a.length ? lse[start + warp * R + i] : (A)0;
    i64 seen = a.causal && start + 4 * R < a.keys ? start + 4 * R : a.keys;
    for (i64 first = 0; first < seen; first += 32) {
        __syncthreads();
        fetch<W>(rows[0], v, a.v, first, a.keys, a.values, a.whole, plain);
        if (BOTH) fetch<W>(rows[BOTH], k, a.k, first, a.keys, a.width, a.whole, plain);
        draw_kept(kept, state, a, head * a.length + start, first / 8);
        __syncthreads();
        scores<R>(rows[0], slope, g, a.values);
        if (!BOTH) {
            __syncthreads();
            fetch<W>(rows[0], k, a.k, first, a.keys, a.width, a.whole, plain);
            __syncthreads();
        }
        scores<R>(rows[BOTH], own, s, a.width);
        bool edge = at_an_edge(mask, a, start, 4 * R, first, 32);
#pragma unroll
        for (int i = 0; i < R; ++i) {
            if (edge) s[i] = masked(s[i], mask, a, start + warp * R + i, first + lane);
            A p = share(s[i], level[i]);
            if (state) g[i] *= left_of<A>(kept[warp * R + i], a, lane);
            weights[warp * R + i][lane] = p * (g[i] - delta[warp * R + i]);
        }
        __syncwarp();
        gather(rows[BOTH], weights, sums);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) scale[i] = (A)a.scale;
    leave(dq, a.dq, start, a.length, a.width, sums, scale);
}

// dk and dv of 16 keys of a head: the same with the roles exchanged, so that lanes are queries.
template <typename T, int W>
__device__ __forceinline__ void gradients_of_keys(Held<WIDE(T), W, 32>& held, i64 head, i64 start, const T* dy, const T* q,
                                                  const T* k, const T* v, const T* mask, const T* out, const WIDE(T)* lse,
                                                  const u64* state, T* dk, T* dv, const Attention& a) {
    typedef WIDE(T) A;
    const int R = 4;
    const bool BOTH = Rooms<A, W>::BOTH;
    auto& [own, value, rows, weights, delta, kept] = held;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    auto plain = [](T x) { return (A)x; };
    fetch<W>(own, k, a.k, start, a.keys, a.width, a.whole, [&](T x) { return (A)x * (A)a.scale; });
    fetch<W>(value, v, a.v, start, a.keys, a.values, a.whole, plain);
    A s[R], g[R], scale[R], left[R], dks[R][W / 32] = {}, dvs[R][W / 32] = {};
    // Queries before the first key are masked for all of these keys.
    for (i64 first = a.causal ? start / 32 * 32 : 0; first < a.length; first += 32) {
        __syncthreads();
        fetch<W>(rows[0], q, a.q, first, a.length, a.width, a.whole, plain);
        if (BOTH) fetch<W>(rows[BOTH], dy, a.dy, first, a.length, a.values, a.whole, plain);
        slopes(delta, dy, out, a, first);
        draw_kept(kept, state, a, head * a.length + first, start / 8);
        __syncthreads();
        scores<R>(rows[0], own, s, a.width);
        i64 query = first + lane;
        A level = query < a.length ? lse[query] : (A)0;
        bool edge = at_an_edge(mask, a, first, 32, start, 4 * R);
#pragma unroll
        for (int i = 0; i < R; ++i) {
            if (edge) s[i] = masked(s[i], mask, a, query, start + warp * R + i);
            s[i] = share(s[i], level);
            left[i] = state ? left_of<A>(kept[lane], a, warp * R + i) : (A)1;
            weights[warp * R + i][lane] = s[i] * left[i];
        }
        if (!BOTH) {
            __syncthreads();
            fetch<W>(rows[0], dy, a.dy, first, a.length, a.values, a.whole, plain);
            __syncthreads();
        } else __syncwarp();
        scores<R>(rows[BOTH], value, g, a.values);
        gather(rows[BOTH], weights, dvs);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < R; ++i) weights[warp * R + i][lane] = s[i] * (g[i] * left[i] - delta[lane]);
        if (!BOTH) {
            __syncthreads();
            fetch<W>(rows[0], q, a.q, first, a.length, a.width, a.whole, plain);
            __syncthreads();
        } else __syncwarp();
        gather(rows[0], weights, dks);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) scale[i] = (A)a.scale;
    leave(dk, a.dk, start, a.keys, a.width, dks, scale);
#pragma unroll
    for (int i = 0; i < R; ++i) scale[i] = 1;
    leave(dv, a.dv, start, a.keys, a.values, dvs, scale);
}

// The first blocks compute dq, the others dk and dv: neither waits for the other.
template <typename T, int W>
__global__ void __launch_bounds__(128, resident<T, W>())
attention_grads(const T* dy, const T* q, const T* k, const T* v, const T* mask, const T* out, const WIDE(T)* lse,
                const u64* state, T* dq, T* dk, T* dv, int blocks, const __grid_constant__ Attention a) {
    const int ROWS = Own<T>::BACKWARD;
    bool keys = (int)blockIdx.x >= blocks;
    i64 block = keys ? blockIdx.x - blocks : blockIdx.x, tiles = ((keys ? a.keys : a.length) + ROWS - 1) / ROWS;
    // Those first that see most of the other side, if attention is causal.
    i64 tile = block % tiles, start = (keys ? tile : tiles - 1 - tile) * ROWS, head = block / tiles;
    dy = head_of(dy, a.dy, head, a);
    q = head_of(q, a.q, head, a);
    k = head_of(k, a.k, head, a);
    v = head_of(v, a.v, head, a);
    mask = head_of(mask, a.mask, head, a);
    out = head_of(out, a.out, head, a);
    dq = head_of(dq, a.dq, head, a);
    dk = head_of(dk, a.dk, head, a);
    dv = head_of(dv, a.dv, head, a);
    lse += head * a.length;
    if constexpr (OnCores<T>::IS) {
        __shared__ union {
            HeldOnCores<T, W, 64> queries;
            HeldOnCores<T, W, Tile<W>::GRADIENTS> keys;
        } held;
        if (!keys) gradient_of_queries_on_cores<T, W>(held.queries, head, start, dy, q, k, v, mask, out, lse, state, dq, a);
        else gradients_of_keys_on_cores<T, W>(held.keys, head, start, dy, q, k, v, mask, out, lse, state, dk, dv, a);
    } else {
        __shared__ union {
            Held<WIDE(T), W, 16> queries;
            Held<WIDE(T), W, 32> keys;
        } held;
        for (i64 end = start + ROWS; start < end && start < (keys ? a.keys : a.length); start += 16, __syncthreads())
            if (!keys) gradient_of_queries<T, W>(held.queries, head, start, dy, q, k, v, mask, out, lse, state, dq, a);
            else gradients_of_keys<T, W>(held.keys, head, start, dy, q, k, v, mask, out, lse, state, dk, dv, a);
    }
}
