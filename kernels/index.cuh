// How a kernel reads an integer position along a dimension.

template <typename I>
__device__ __forceinline__ i64 inside(I index, i64 length, i64 back) {
    i64 p = (i64)index;
    if (p < 0) p += back;
    return p < length ? p : -1;
}
