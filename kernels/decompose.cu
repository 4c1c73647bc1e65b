// Systems of equations, determinants and Cholesky factors: one block for each matrix of n rows. Golub and Van Loan, Matrix
// Computations, sections 3.4 and 4.2.
//
// Traffic in bytes, elements of s: elimination with k right-hand sides reads and writes (n + k) s for each row at each of n
// steps, at most n^2 (n + k) s; the Cholesky factor reads n^3 s / 3. The host reads nothing: a matrix that is singular, or is
// not positive definite, gives infinities and NaN.

#include "common.cuh"

// The row at or below `step` with the largest element in that column; among equal ones, the same row in every run.
template <typename T>
__device__ __forceinline__ i64 pivot_of(const T* a, i64 n, i64 step, T* values, i64* rows) {
    i64 best = step;
    for (i64 r = step + threadIdx.x; r < n; r += 256)
        if (size_of(a[r * n + step]) > size_of(a[best * n + step])) best = r;
    __syncthreads();  // until all threads have read the previous step's values
    rows[threadIdx.x] = best;
    values[threadIdx.x] = size_of(a[best * n + step]);
    __syncthreads();
    int first = 0;
    for (int k = 1; k < 256; ++k)
        if (values[k] > values[first]) first = k;
    return rows[first];
}

template <typename T>
__device__ __forceinline__ void swap_rows(T* x, i64 width, i64 one, i64 two) {
    for (i64 j = threadIdx.x; one != two && j < width; j += 256) {
        T kept = x[one * width + j];
        x[one * width + j] = x[two * width + j];
        x[two * width + j] = kept;
    }
}

// Gauss-Jordan elimination with partial pivoting: overwrites a, which becomes diagonal, and b, which becomes the solution.
template <typename T>
__global__ void eliminate(T* a, T* b, i64 n, i64 k) {
    __shared__ T values[256];
    __shared__ i64 rows[256];
    a += (i64)blockIdx.x * n * n;
    b += (i64)blockIdx.x * n * k;
    for (i64 step = 0; step < n; ++step) {
        i64 best = pivot_of(a, n, step, values, rows);
        swap_rows(a, n, step, best);
        swap_rows(b, k, step, best);
        __syncthreads();
        T pivot = a[step * n + step];
        // The column itself is left unchanged: all threads read their factors there.
        i64 width = n - step - 1 + k;
        for (i64 i = threadIdx.x; i < n * width; i += 256) {
            i64 r = i / width, j = i % width;
            if (r == step) continue;
            T factor = a[r * n + step] / pivot;
            if (j < k) b[r * k + j] -= factor * b[step * k + j];
            else a[r * n + step + 1 + j - k] -= factor * a[step * n + step + 1 + j - k];
        }
        __syncthreads();
    }
    for (i64 i = threadIdx.x; i < n * k; i += 256) b[i] /= a[i / k * n + i / k];
}

// Elimination below the diagonal: the determinant, or its sign and the logarithm of its absolute value.
template <typename T>
__global__ void determinant(T* a, T* out, T* logarithm, i64 n) {
    __shared__ T values[256];
    __shared__ i64 rows[256];
    a += (i64)blockIdx.x * n * n;
    T sign = 1, product = 1, sum = 0;
    for (i64 step = 0; step < n; ++step) {
        i64 best = pivot_of(a, n, step, values, rows);
        swap_rows(a, n, step, best);
        __syncthreads();
        T pivot = a[step * n + step];
        if (best != step) sign = -sign;
        if (logarithm) {
            sign = pivot < 0 ? -sign : pivot == 0 ? (T)0 : sign;
            sum += log(size_of(pivot));
        } else {
            product *= pivot;
        }
        i64 width = n - step - 1;
        for (i64 i = threadIdx.x; pivot != 0 && i < width * width; i += 256) {
            i64 r = step + 1 + i / width, j = step + 1 + i % width;
            a[r * n + j] -= a[r * n + step] / pivot * a[step * n + j];
        }
        __syncthreads();
    }
    if (threadIdx.x) return;
    out[blockIdx.x] = logarithm ? sign : sign * product;
    if (logarithm) logarithm[blockIdx.x] = sum;
}

// Column by column, from the lower triangle of a.
template <typename T>
__global__ void cholesky(const T* a, T* out, i64 n) {
    a += (i64)blockIdx.x * n * n;
    out += (i64)blockIdx.x * n * n;
    for (i64 i = threadIdx.x; i < n * n; i += 256)
        if (i % n > i / n) out[i] = 0;
    for (i64 step = 0; step < n; ++step) {
        __syncthreads();
        T rest = a[step * n + step];
        for (i64 j = 0; j < step; ++j) rest -= out[step * n + j] * out[step * n + j];
        T root = sqrt(rest);
        for (i64 r = step + threadIdx.x; r < n; r += 256) {
            T own = a[r * n + step];
            for (i64 j = 0; j < step; ++j) own -= out[r * n + j] * out[step * n + j];
            out[r * n + step] = r == step ? root : own / root;
        }
    }
}
