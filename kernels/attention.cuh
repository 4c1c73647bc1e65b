// What the two ways to compute attention share: its argument, how operands get into shared memory, masks, dropout. A block has
// 128 threads.

#include "common.cuh"
#include "cores.cuh"
#include "philox.cuh"

// Strides of [batch, heads, positions, width] of each tensor, in elements. `whole` says that rows of all of them consist of
// accesses of 16 bytes.
struct Attention {
    i64 heads, length, keys, width, values, causal, whole;
    double scale, drop, left;  // what is dropped becomes 0, the rest is multiplied by `left`
    i64 q[4], k[4], v[4], mask[4], out[4], dy[4], dq[4], dk[4], dv[4];
};

template <typename T>
__device__ __forceinline__ T* head_of(T* x, const i64 (&strides)[4], i64 head, const Attention& a) {
    return x ? x + head / a.heads * strides[0] + head % a.heads * strides[1] : x;
}

template <int W, int N, int Rows, int Pitch, typename S, typename T, typename F>
__device__ __forceinline__ void fetch_by(S (&room)[Rows][Pitch], const T* x, const i64 (&strides)[4], i64 start, i64 positions,
                                         i64 width, const F& kept) {
    const int ACROSS = W / N, STEP = 128 / ACROSS;  // accesses to a row, and rows at once
    int row = threadIdx.x / ACROSS, e = threadIdx.x % ACROSS * N;
    int left = e >= width ? 0 : positions - start < Rows ? (int)(positions - start) : Rows;
    x += (start + row) * strides[2] + e * strides[3];
#pragma unroll 8
    for (int i = 0; i < (Rows + STEP - 1) / STEP; ++i, row += STEP, x += STEP * strides[2]) {
        if (Rows % STEP && row >= Rows) break;
        Pack<T, N> some;
        bool inside = row < left;
        if (inside) some = *(const Pack<T, N>*)x;
        Pack<S, N> made;
#pragma unroll
        for (int k = 0; k < N; ++k) made.of[k] = inside ? kept(some.of[k]) : (S)0;
        *(Pack<S, N>*)&room[row][e] = made;
    }
}

// Loads rows of x [positions, width] from `start` on, each element as `kept` makes it, with zeros beyond the ends.
template <int W, int Rows, int Pitch, typename S, typename T, typename F>
__device__ __forceinline__ void fetch(S (&room)[Rows][Pitch], const T* x, const i64 (&strides)[4], i64 start, i64 positions,
                                      i64 width, bool whole, const F& kept) {
    if (whole) fetch_by<W, 16 / sizeof(S)>(room, x, strides, start, positions, width, kept);
    else fetch_by<W, 1>(room, x, strides, start, positions, width, kept);
}

// Are any scores of some queries and keys to be masked, or beyond an end?
template <typename T>
__device__ __forceinline__ bool at_an_edge(const T* mask, const Attention& a, i64 query, i64 queries, i64 key, i64 keys) {
    return mask || query + queries > a.length || key + keys > a.keys || (a.causal && key + keys - 1 > query);
}

// The score of this query and key with the mask added, or -inf if the pair is masked out.
template <typename A, typename T>
__device__ __forceinline__ A masked(A score, const T* mask, const Attention& a, i64 query, i64 key) {
    if (query >= a.length || key >= a.keys || (a.causal && key > query)) return -infinity<A>();
    return mask ? score + (A)mask[query * a.mask[2] + key * a.mask[3]] : score;
}

// The probability of a score, 0 for -inf, whatever the given lse is.
template <typename A>
__device__ __forceinline__ A share(A score, A lse) { return score == -infinity<A>() ? (A)0 : exp(score - lse); }

// One bit for each of 8 keys, set if dropout keeps its score, from query `row` of all heads and the `eighth` 8 keys on.
template <int Rows, int Eighths>
__device__ __forceinline__ void draw_kept(u32 (&kept)[Rows][Eighths], const u64* state, const Attention& a, i64 row,
                                          i64 eighth) {
    if (!state) return;
    for (int i = threadIdx.x; i < Rows * Eighths; i += 128) {
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

// The lse of a row, of whose scores the largest and the sum of exponentials are known; the result of a fully masked row is 0.
template <typename A>
__device__ __forceinline__ A lse_of(A top, A total, const Attention& a) {
    return total != (A)0 ? log(total) + top : a.keys ? least_of<A>() : (A)0;
}

// The sum of dy out over a row, of the elements of every ACROSS-th access to it, N at a time.
template <int ACROSS, int N, typename A, typename T>
__device__ __forceinline__ A slope_of(const T* dy, const T* out, const Attention& a, i64 row) {
    A sum = 0;
    dy += row * a.dy[2];
    out += row * a.out[2];
#pragma unroll 1
    for (int e = threadIdx.x % ACROSS * N; e < a.values; e += ACROSS * N) {
        Pack<T, N> g = *(const Pack<T, N>*)(dy + e * a.dy[3]), y = *(const Pack<T, N>*)(out + e * a.out[3]);
#pragma unroll
        for (int k = 0; k < N; ++k) sum += (A)g.of[k] * (A)y.of[k];
    }
    return sum;
}

// What the gradient of softmax subtracts: dy . out of some rows of a head, some threads for each.
template <int Rows, typename A, typename T>
__device__ __forceinline__ void slopes(A (&made)[Rows], const T* dy, const T* out, const Attention& a, i64 start) {
    const int EACH_ROW = 128 / Rows;
    i64 row = start + threadIdx.x / EACH_ROW;
    A sum = 0;
    if (row < a.length)
        sum = a.whole ? slope_of<EACH_ROW, 16 / sizeof(T), A>(dy, out, a, row) : slope_of<EACH_ROW, 1, A>(dy, out, a, row);
    for (int offset = EACH_ROW / 2; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % EACH_ROW == 0) made[threadIdx.x / EACH_ROW] = sum;
}
