// Products of small matrices of floats: out = x y, then a bias, or a bias and relu; or the gradient of relu, by relu's result, which
// is stored as out is; or beside it the sums of y over the inner dimension, which are a bias's gradient. A library's kernels, made
// for large matrices, take longer: their tiles are as large as the whole result, so that one or two multiprocessors work, or they
// split short sums and add up the parts in a second launch.
//
// A block computes 16 x 16 elements of the result, a thread one of them, from panels of 128 products that all its threads have
// brought to shared memory at once. Sums have four parts, each in the order of the inner dimension. Matrices are stored by columns,
// as for cuBLAS.
//
// Traffic in bytes, m x n elements of s, of k products each: reads s k (m ceil(n / 16) + n ceil(m / 16)), writes s m n; for the
// gradient of relu it reads s m n more.

#include "common.cuh"

#define SIDE 16
#define PANEL 128
// Of a row in shared memory, so that rows begin in other banks, and at multiples of 16 bytes.
#define ROW (PANEL + 4)

// Elements from one to the next along each dimension, and from one matrix to the next.
struct Sizes {
    i64 m, n, k, x_row, x_inner, y_inner, y_column, out_column, x_step, y_step, out_step;
};

enum { NOTHING, BIAS, RELU_BIAS, BIAS_GRADIENT, RELU_GRADIENT };

// A thread's elements of 16 lines of up to 128, with zeros beyond the matrix. Neighboring threads have neighbors in memory.
struct Part {
    int line, inner, lines, inners;
    float read[8];

    __device__ __forceinline__ void take(const float* from, i64 to_line, i64 to_inner, i64 most_lines, i64 most_inner) {
        bool along = to_inner == 1;
        line = threadIdx.x % SIDE, inner = threadIdx.x / SIDE, lines = 0, inners = 256 / SIDE;
        if (along) line = threadIdx.x / PANEL, inner = threadIdx.x % PANEL, lines = 256 / PANEL, inners = 0;
#pragma unroll
        for (int r = 0; r < 8; ++r) {
            int l = line + r * lines, p = inner + r * inners;
            read[r] = l < most_lines && p < most_inner ? from[l * to_line + p * to_inner] : 0.0f;
        }
    }
    __device__ __forceinline__ void keep(float* panel) const {
#pragma unroll
        for (int r = 0; r < 8; ++r) panel[(line + r * lines) * ROW + inner + r * inners] = read[r];
    }
};

// A block of 256 threads: without the bound sm_120 gets more registers than two of them have.
template <int then>
__global__ void __launch_bounds__(256) small_product(const float* x, const float* y, float* out, float* vector, Sizes s) {
    alignas(16) __shared__ float xs[SIDE * ROW], ys[SIDE * ROW];
    i64 rows = (s.m + SIDE - 1) / SIDE, tiles = rows * ((s.n + SIDE - 1) / SIDE);
    i64 batch = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    i64 i = tile % rows * SIDE, j = tile / rows * SIDE;
    x += batch * s.x_step + i * s.x_row;
    y += batch * s.y_step + j * s.y_column;
    // A thread's element of the tile: neighbors are neighbors in memory.
    int ti = threadIdx.x % SIDE, tj = threadIdx.x / SIDE;
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f}, total = 0.0f;
    for (i64 first = 0; first < s.k; first += PANEL) {
        i64 count = s.k - first < PANEL ? s.k - first : PANEL;
        Part of_x, of_y;
        of_x.take(x + first * s.x_inner, s.x_row, s.x_inner, s.m - i, count);
        of_y.take(y + first * s.y_inner, s.y_column, s.y_inner, s.n - j, count);
        if (first) __syncthreads();
        of_x.keep(xs);
        of_y.keep(ys);
        __syncthreads();
        const float *a = xs + ti * ROW, *b = ys + tj * ROW;
        int most = (int)((count + 3) & ~3);
#pragma unroll 8
        for (int p = 0; p < most; p += 4) {
            Pack<float, 4> u = *(const Pack<float, 4>*)(a + p), v = *(const Pack<float, 4>*)(b + p);
#pragma unroll
            for (int q = 0; q < 4; ++q) sums[q] = fmaf(u.of[q], v.of[q], sums[q]);
        }
        if (then == BIAS_GRADIENT && !i)
            // Each of the sixteen threads of a column adds up its share.
            for (int p = ti; p < most; p += SIDE) total += b[p];
    }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    i64 row = i + ti, column = j + tj;
    if (row < s.m && column < s.n) {
        i64 at = batch * s.out_step + row + column * s.out_column;
        if (then == BIAS || then == RELU_BIAS) sum += vector[row];
        // NaN stays NaN.
        if (then == RELU_BIAS) sum = sum < 0.0f ? 0.0f : sum;
        // out may be in the place of relu's result.
        if (then == RELU_GRADIENT && vector[at] <= 0.0f) sum = 0.0f;
        out[at] = sum;
    }
    if (then == BIAS_GRADIENT && !i) {
#pragma unroll
        for (int far = SIDE / 2; far; far /= 2) total += __shfl_xor_sync(0xffffffffu, total, far);
        if (!ti && column < s.n) vector[column] = total;
    }
}
