// How norms compute an element, with the same bits in every kernel: a sum that the compiler may not fuse with the product
// before it, so that a recomputed value equals the original.

#include "common.cuh"

// Rounded, and not part of a fused multiply-add.
__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double plus(double a, double b) { return __dadd_rn(a, b); }

// hat weight + bias, with the weight and the bias that there are.
template <typename A>
__device__ __forceinline__ A affine_of(A hat, bool weighted, A weight, bool biased, A bias) {
    A y = weighted ? hat * weight : hat;
    return biased ? plus(y, bias) : y;
}

// With `relu`, relu of a rounded result, where NaN stays NaN; with `gradient`, the gradient of relu for the cotangent g.
template <typename A, typename T>
__device__ __forceinline__ T through_relu(T made, bool relu, bool gradient, T g) {
    if (gradient) return (T)((A)made <= 0 ? (A)0 : (A)g);
    return relu && (A)made < 0 ? (T)0 : made;
}

// The number of a channel, such as batch norm's weight: a T, or with `wide` in the precision of the computation, which only for
// types of 16 bits is another.
template <typename T>
__device__ __forceinline__ WIDE(T) of_channel(const void* x, i64 c, int wide) {
    return sizeof(T) == 2 && wide ? ((const WIDE(T)*)x)[c] : (WIDE(T))((const T*)x)[c];
}

template <typename T>
__device__ __forceinline__ void set_channel(void* x, i64 c, int wide, WIDE(T) v) {
    if (sizeof(T) == 2 && wide) ((WIDE(T)*)x)[c] = v;
    else ((T*)x)[c] = (T)v;
}

// The values for N neighbors: one element for all of them, or N elements; `none` if there is no tensor.
template <int N, typename A, typename T>
__device__ __forceinline__ void given(const T* x, i64 at, bool same, A none, A (&made)[N]) {
    Pack<T, N> found;
    if (x && !same) found = *(const Pack<T, N>*)(x + at);
#pragma unroll
    for (int k = 0; k < N; ++k) made[k] = !x ? none : same ? (A)x[at] : (A)found.of[k];
}

// Where a row's weights and biases lie: one for each column, or, if `inner` is not 0, one for each channel of so many columns. Then
// a row is one of `groups` of channels, and N neighbors are in one channel.
struct Affine {
    i64 inner, first;
    __device__ __forceinline__ Affine(i64 inner, i64 groups, i64 row, i64 width)
        : inner(inner), first(inner ? row % groups * (width / inner) : 0) {}
    __device__ __forceinline__ i64 at(i64 column) const {
        if (!inner) return column;
        return first + (column < (i64)1 << 32 ? (i64)((u32)column / (u32)inner) : column / inner);
    }
};

// The numbers of N adjacent channels, as of_channel; `none` if there is no tensor.
template <typename T, int N>
__device__ __forceinline__ void of_channels(const void* x, i64 c, int wide, WIDE(T) none, WIDE(T) (&made)[N]) {
    typedef WIDE(T) A;
    constexpr int V = N * sizeof(A) > 16 ? 16 / sizeof(A) : N;
#pragma unroll
    for (int j = 0; j < N; j += V) {
        A some[V];
        if (sizeof(T) == 2 && wide) given((const A*)x, c + j, false, none, some);
        else given((const T*)x, c + j, false, none, some);
#pragma unroll
        for (int k = 0; k < V; ++k) made[j + k] = some[k];
    }
}
