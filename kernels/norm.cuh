// How norms compute an element, with the same bits in every kernel: a sum that the compiler may not fuse with the product
// before it, so that a recomputed value equals the original.

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
