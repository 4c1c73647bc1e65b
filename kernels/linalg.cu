// Matrix products that cuBLAS does not support: integers, and operands that no leading dimension describes.
//
// Traffic in bytes, (m, k) by (k, n) of s: reads 2 m n k s, from cache where rows are shared, and writes m n s. This fallback
// avoids copies of such operands that the log would not show; large products belong to cuBLAS.

#include "common.cuh"

struct Product {
    Axes batch;
    i64 rows, columns, inner, a_row, a_inner, b_inner, b_column, out_row;
};

// Tensors 0, 1 and 2 of the batch are a, b and out, whose rows are contiguous.
template <typename T>
__global__ void matmul(const T* a, const T* b, T* out, const __grid_constant__ Product p, i64 n, int added) {
    typedef WIDE(T) A;
    EACH(i, n) {
        i64 column = i % p.columns, row = i / p.columns % p.rows, batch[3];
        locate(p.batch, i / p.columns / p.rows, batch);
        const T* x = a + batch[0] + row * p.a_row;
        const T* y = b + batch[1] + column * p.b_column;
        T* to = out + batch[2] + row * p.out_row + column;
        A total = added ? (A)*to : (A)0;
        for (i64 k = 0; k < p.inner; ++k) total += (A)x[k * p.a_inner] * (A)y[k * p.b_inner];
        *to = (T)total;
    }
}
