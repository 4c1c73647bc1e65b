// Scaled dot-product attention and its gradients. The scores never leave the multiprocessor.
//
// A block takes some queries (or keys) of one head and loops over the keys (queries), 32 at a time, one per lane. A row's maximum
// and sum are reduced within a warp, online (Dao et al., FlashAttention, arXiv:2205.14135; Milakov and Gimelshein,
// arXiv:1805.02867).
//
// Traffic in bytes per head, L queries and S keys of width E in elements of s: forward reads L E s, and 2 S E s for each 32
// queries, from cache if a head's keys fit; it writes L E s and L s. Backward reads 5 S E s for each 16 queries and 5 L E s for
// each 16 keys, and writes each gradient once. Causal attention skips the masked half. The dropout mask is drawn by forward and
// drawn again by each gradient. W is a power of two, at least 32, that holds the widths of keys and values.

#include "common.cuh"
#include "philox.cuh"

// Strides of [batch, heads, positions, width] of each tensor, in elements.
struct Attention {
    i64 heads, length, keys, width, values, causal;
    double scale, drop, left;  // what is dropped becomes 0, the rest is multiplied by `left`
    i64 q[4], k[4], v[4], mask[4], out[4], dy[4], dq[4], dk[4], dv[4];
};

template <typename T>
__device__ __forceinline__ T* head_of(T* x, const i64 (&strides)[4], i64 batch, i64 head) {
    return x ? x + batch * strides[0] + head * strides[1] : x;
}

// Loads rows from `start` on of [positions, width], with zeros beyond its ends. Rows of `room` that lanes read one each are one
// element longer, so that 32 lanes that read a column use different banks.
template <int Rows, int W, int Pitch, typename A, typename T>
__device__ __forceinline__ void fetch(A (&room)[Rows][Pitch], const T* x, const i64 (&strides)[4], i64 start, i64 positions,
                                      i64 width, A scale) {
#pragma unroll 4
    for (int i = threadIdx.x; i < Rows * W; i += 256) {
        i64 row = start + i / W, e = i % W;
        room[i / W][e] = row < positions && e < width ? (A)x[row * strides[2] + e * strides[3]] * scale : (A)0;
    }
}

// The dot products of this lane's row with each of the warp's R rows.
template <int R, int W, int Rows, int Ours, typename A>
__device__ __forceinline__ void scores(const A (&rows)[Rows][W + 1], const A (&own)[Ours][W], A (&made)[R], i64 width) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < R; ++i) made[i] = 0;
#pragma unroll 4
    for (int e = 0; e < width; ++e) {
        A other = rows[lane][e];
#pragma unroll
        for (int i = 0; i < R; ++i) made[i] += own[warp * R + i][e] * other;
    }
}

// Adds the lanes' rows, each times its lane's weight, to the sums of each of the warp's R rows.
template <int R, int W, int Rows, typename A>
__device__ __forceinline__ void gather(const A (&rows)[Rows][W + 1], const A (&weights)[R], A (&sums)[R][W / 32]) {
    int lane = threadIdx.x & 31;
#pragma unroll 4
    for (int j = 0; j < 32; ++j)
#pragma unroll
        for (int i = 0; i < R; ++i) {
            A weight = __shfl_sync(0xffffffffu, weights[i], j);
#pragma unroll
            for (int c = 0; c < W / 32; ++c) sums[i][c] += weight * rows[j][lane + 32 * c];
        }
}

template <int R, int W, typename A, typename T>
__device__ __forceinline__ void leave(T* x, const i64 (&strides)[4], i64 start, i64 positions, i64 width,
                                      const A (&sums)[R][W / 32], const A (&scale)[R]) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
        for (int c = 0; c < W / 32; ++c) {
            i64 row = start + warp * R + i, e = lane + 32 * c;
            if (row < positions && e < width) x[row * strides[2] + e * strides[3]] = (T)(sums[i][c] * scale[i]);
        }
}

// The score of this query and key with the mask added, or -inf if the pair is masked out.
template <typename A, typename T>
__device__ __forceinline__ A masked(A score, const T* mask, const Attention& a, i64 query, i64 key) {
    if (query >= a.length || key >= a.keys || (a.causal && key > query)) return -infinity<A>();
    return mask ? score + (A)mask[query * a.mask[2] + key * a.mask[3]] : score;
}

// The probability of a score, 0 for -inf: in a fully masked row lse may be -inf as well.
template <typename A>
__device__ __forceinline__ A share(A score, A lse) { return score == -infinity<A>() ? (A)0 : exp(score - lse); }

// One bit for each of 8 keys, set if dropout keeps its score, from query `row` of all heads and the `eighth` 8 keys on.
template <int Rows, int Eighths>
__device__ __forceinline__ void draw_kept(u32 (&kept)[Rows][Eighths], const u64* state, const Attention& a, i64 row,
                                          i64 eighth) {
    if (!state) return;
    for (int i = threadIdx.x; i < Rows * Eighths; i += 256) {
        float u[8];
        draw(state, (row + i / Eighths) * ((a.keys + 7) / 8) + eighth + i % Eighths, u);
        u32 bits = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) bits |= (u32)(u[k] >= (float)a.drop) << k;
        kept[i / Eighths][i % Eighths] = bits;
    }
}

// The factor by which dropout multiplies the score of the key `key` places after the first of a row's bits.
template <typename A, int Eighths>
__device__ __forceinline__ A left_of(const u32 (&kept)[Eighths], const Attention& a, int key) {
    return kept[key >> 3] >> (key & 7) & 1 ? (A)a.left : (A)0;
}

// The least finite number: the lse of a fully masked row.
template <typename A> __device__ __forceinline__ A least_of();
template <> __device__ __forceinline__ float least_of<float>() { return -3.402823466e38f; }
template <> __device__ __forceinline__ double least_of<double>() { return -1.7976931348623157e308; }

template <typename T, int W>
__global__ void __launch_bounds__(256, 2)
attention(const T* q, const T* k, const T* v, const T* mask, const u64* state, T* out, T* lse,
          const __grid_constant__ Attention a) {
    typedef WIDE(T) A;
    const int R = 4;
    __shared__ A own[8 * R][W], rows[32][W + 1];
    __shared__ u32 kept[8 * R][4];
    i64 tiles = (a.length + 8 * R - 1) / (8 * R), start = blockIdx.x % tiles * 8 * R;
    i64 head = blockIdx.x / tiles % a.heads, batch = blockIdx.x / tiles / a.heads;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    q = head_of(q, a.q, batch, head);
    k = head_of(k, a.k, batch, head);
    v = head_of(v, a.v, batch, head);
    mask = head_of(mask, a.mask, batch, head);
    fetch<8 * R, W, W>(own, q, a.q, start, a.length, a.width, (A)a.scale);
    A top[R], total[R], s[R], sums[R][W / 32] = {};
#pragma unroll
    for (int i = 0; i < R; ++i) top[i] = -infinity<A>(), total[i] = 0;
    i64 seen = a.causal && start + 8 * R < a.keys ? start + 8 * R : a.keys;
    for (i64 first = 0; first < seen; first += 32) {
        __syncthreads();
        fetch<32, W, W + 1>(rows, k, a.k, first, a.keys, a.width, (A)1);
        draw_kept(kept, state, a, (batch * a.heads + head) * a.length + start, first / 8);
        __syncthreads();
        scores<R, W>(rows, own, s, a.width);
#pragma unroll
        for (int i = 0; i < R; ++i) {
            s[i] = masked(s[i], mask, a, start + warp * R + i, first + lane);
            A most = s[i];
            for (int offset = 16; offset; offset >>= 1) most = Most::of(most, (A)__shfl_xor_sync(0xffffffffu, most, offset));
            most = Most::of(top[i], most);
            // Only masked scores so far: there is no maximum to subtract.
            A level = most == -infinity<A>() ? (A)0 : most, shrink = exp(top[i] - level);
            s[i] = exp(s[i] - level);
            A sum = s[i];
            for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            total[i] = total[i] * shrink + sum;
            top[i] = most;
            if (state) s[i] *= left_of<A>(kept[warp * R + i], a, lane);
#pragma unroll
            for (int c = 0; c < W / 32; ++c) sums[i][c] *= shrink;
        }
        __syncthreads();
        fetch<32, W, W + 1>(rows, v, a.v, first, a.keys, a.values, (A)1);
        __syncthreads();
        gather<R, W>(rows, s, sums);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) {
        i64 row = start + warp * R + i;
        // The result of a fully masked row is 0.
        bool none = total[i] == (A)0;
        A norm = !none ? log(total[i]) + top[i] : a.keys ? least_of<A>() : (A)0;
        if (!lane && row < a.length) lse[(batch * a.heads + head) * a.length + row] = (T)norm;
        total[i] = none ? (A)0 : (A)1 / total[i];
    }
    leave<R, W>(head_of(out, a.out, batch, head), a.out, start, a.length, a.values, sums, total);
}

// What the gradient of softmax subtracts: dy . out of some rows, one row per warp at a time.
template <int Rows, typename A, typename T>
__device__ __forceinline__ void slopes(A (&made)[Rows], const T* dy, const T* out, const Attention& a, i64 start) {
#pragma unroll 1
    for (int row = threadIdx.x >> 5; row < Rows; row += 8) {
        A sum = 0;
        if (start + row < a.length)
            for (i64 e = threadIdx.x & 31; e < a.values; e += 32)
                sum += (A)dy[(start + row) * a.dy[2] + e * a.dy[3]] * (A)out[(start + row) * a.out[2] + e * a.out[3]];
        for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        made[row] = sum;
    }
}

// The shared memory of a gradient's block: 16 rows of its own and 32 of the others; for those that are queries, also deltas and
// kept scores.
template <typename A, int W, int Queries>
struct Held {
    A own[16][W], slope[16][W], rows[32][W + 1], delta[Queries];
    u32 kept[Queries][64 / Queries];
};

template <typename T, int W>
__device__ __forceinline__ void gradient_of_queries(i64 block, Held<WIDE(T), W, 16>& held, const T* dy, const T* q, const T* k,
                                                    const T* v, const T* mask, const T* out, const T* lse, const u64* state,
                                                    T* dq, const Attention& a) {
    typedef WIDE(T) A;
    const int R = 2;
    auto& [own, slope, rows, delta, kept] = held;
    i64 tiles = (a.length + 8 * R - 1) / (8 * R), start = block % tiles * 8 * R;
    i64 head = block / tiles % a.heads, batch = block / tiles / a.heads;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    dy = head_of(dy, a.dy, batch, head);
    k = head_of(k, a.k, batch, head);
    v = head_of(v, a.v, batch, head);
    mask = head_of(mask, a.mask, batch, head);
    lse += (batch * a.heads + head) * a.length;
    fetch<8 * R, W, W>(own, head_of(q, a.q, batch, head), a.q, start, a.length, a.width, (A)a.scale);
    fetch<8 * R, W, W>(slope, dy, a.dy, start, a.length, a.values, (A)1);
    slopes(delta, dy, head_of(out, a.out, batch, head), a, start);
    A s[R], g[R], scale[R], sums[R][W / 32] = {};
    i64 seen = a.causal && start + 8 * R < a.keys ? start + 8 * R : a.keys;
    for (i64 first = 0; first < seen; first += 32) {
        __syncthreads();
        fetch<32, W, W + 1>(rows, v, a.v, first, a.keys, a.values, (A)1);
        draw_kept(kept, state, a, (batch * a.heads + head) * a.length + start, first / 8);
        __syncthreads();
        scores<R, W>(rows, slope, g, a.values);
        __syncthreads();
        fetch<32, W, W + 1>(rows, k, a.k, first, a.keys, a.width, (A)1);
        __syncthreads();
        scores<R, W>(rows, own, s, a.width);
#pragma unroll
        for (int i = 0; i < R; ++i) {
            i64 row = start + warp * R + i;
            A p = share(masked(s[i], mask, a, row, first + lane), row < a.length ? (A)lse[row] : (A)0);
            if (state) g[i] *= left_of<A>(kept[warp * R + i], a, lane);
            g[i] = p * (g[i] - delta[warp * R + i]);
        }
        gather<R, W>(rows, g, sums);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) scale[i] = (A)a.scale;
    leave<R, W>(head_of(dq, a.dq, batch, head), a.dq, start, a.length, a.width, sums, scale);
}

// The same with the roles exchanged: the block's rows are keys, with their values, and lanes are queries.
template <typename T, int W>
__device__ __forceinline__ void gradients_of_keys(i64 block, Held<WIDE(T), W, 32>& held, const T* dy, const T* q, const T* k,
                                                  const T* v, const T* mask, const T* out, const T* lse, const u64* state,
                                                  T* dk, T* dv, const Attention& a) {
    typedef WIDE(T) A;
    const int R = 2;
    auto& [own, value, rows, delta, kept] = held;
    i64 tiles = (a.keys + 8 * R - 1) / (8 * R), start = block % tiles * 8 * R;
    i64 head = block / tiles % a.heads, batch = block / tiles / a.heads;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    dy = head_of(dy, a.dy, batch, head);
    q = head_of(q, a.q, batch, head);
    out = head_of(out, a.out, batch, head);
    mask = head_of(mask, a.mask, batch, head);
    lse += (batch * a.heads + head) * a.length;
    fetch<8 * R, W, W>(own, head_of(k, a.k, batch, head), a.k, start, a.keys, a.width, (A)a.scale);
    fetch<8 * R, W, W>(value, head_of(v, a.v, batch, head), a.v, start, a.keys, a.values, (A)1);
    A s[R], g[R], scale[R], left[R], dropped[R], dks[R][W / 32] = {}, dvs[R][W / 32] = {};
    // Queries before the first key are masked for all of these keys.
    for (i64 first = a.causal ? start / 32 * 32 : 0; first < a.length; first += 32) {
        __syncthreads();
        fetch<32, W, W + 1>(rows, q, a.q, first, a.length, a.width, (A)1);
        slopes(delta, dy, out, a, first);
        draw_kept(kept, state, a, (batch * a.heads + head) * a.length + first, start / 8);
        __syncthreads();
        scores<R, W>(rows, own, s, a.width);
        i64 query = first + lane;
#pragma unroll
        for (int i = 0; i < R; ++i) {
            s[i] = share(masked(s[i], mask, a, query, start + warp * R + i), query < a.length ? (A)lse[query] : (A)0);
            left[i] = state ? left_of<A>(kept[lane], a, warp * R + i) : (A)1;
            dropped[i] = s[i] * left[i];
        }
        __syncthreads();
        fetch<32, W, W + 1>(rows, dy, a.dy, first, a.length, a.values, (A)1);
        __syncthreads();
        scores<R, W>(rows, value, g, a.values);
        gather<R, W>(rows, dropped, dvs);
#pragma unroll
        for (int i = 0; i < R; ++i) g[i] = s[i] * (g[i] * left[i] - delta[lane]);
        __syncthreads();
        fetch<32, W, W + 1>(rows, q, a.q, first, a.length, a.width, (A)1);
        __syncthreads();
        gather<R, W>(rows, g, dks);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) scale[i] = (A)a.scale;
    leave<R, W>(head_of(dk, a.dk, batch, head), a.dk, start, a.keys, a.width, dks, scale);
#pragma unroll
    for (int i = 0; i < R; ++i) scale[i] = 1;
    leave<R, W>(head_of(dv, a.dv, batch, head), a.dv, start, a.keys, a.values, dvs, scale);
}

// The first blocks compute dq, the others dk and dv: neither waits for the other.
template <typename T, int W>
__global__ void __launch_bounds__(256, 2)
attention_grads(const T* dy, const T* q, const T* k, const T* v, const T* mask, const T* out, const T* lse, const u64* state,
                T* dq, T* dk, T* dv, int blocks, const __grid_constant__ Attention a) {
    __shared__ union {
        Held<WIDE(T), W, 16> queries;
        Held<WIDE(T), W, 32> keys;
    } held;
    if ((int)blockIdx.x < blocks)
        gradient_of_queries<T, W>(blockIdx.x, held.queries, dy, q, k, v, mask, out, lse, state, dq, a);
    else
        gradients_of_keys<T, W>((int)blockIdx.x - blocks, held.keys, dy, q, k, v, mask, out, lse, state, dk, dv, a);
}
