// What norms make of an element, with the same bits in every kernel: a sum that the compiler may not fuse with the product
// before it, so that a value made again is the value that was.

// Rounded, and no part of a fused multiplication.
__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double plus(double a, double b) { return __dadd_rn(a, b); }

// hat weight + bias, as far as there is a weight or a bias.
template <typename A>
__device__ __forceinline__ A affine_of(A hat, bool weighted, A weight, bool biased, A bias) {
    A y = weighted ? hat * weight : hat;
    return biased ? plus(y, bias) : y;
}
