// Eigenvalues, singular values and QR factors: one block for each matrix. Jacobi's rotations from one side, Hestenes, Inversion
// of Matrices by Biorthogonalization and Related Results, 1958, in the round-robin order of Brent and Luk, The Solution of
// Singular-Value and Symmetric Eigenvalue Problems on Multiprocessor Arrays, 1985; Householder's reflections, Golub and Van
// Loan, Matrix Computations, section 5.2.
//
// Traffic in bytes, elements of s: each sweep over k vectors of n elements reads and writes (k - 1) k (n + k) s, and there are
// about 6 to 10; the reflections of an m by n matrix read and write 2 m n^2 s, and those that make Q as much. The host reads
// nothing: a matrix with an infinity or a NaN gives NaN.
//
// Vectors are rows of the workspace, so that a warp reads neighbors.

#include "common.cuh"

template <typename T> __device__ __forceinline__ T unit_roundoff();
template <> __device__ __forceinline__ float unit_roundoff<float>() { return 1.1920929e-7f; }
template <> __device__ __forceinline__ double unit_roundoff<double>() { return 2.220446049250313e-16; }

// The sum over a warp of the products of two vectors' elements.
template <typename T>
__device__ __forceinline__ T dot(const T* x, const T* y, i64 n, const Team& warp) {
    T sum = 0;
    for (i64 i = warp.rank; i < n; i += 32) sum += x[i] * y[i];
    return team_fold<Sum>(sum, warp, (T*)nullptr);
}

// The largest size of n elements, which all threads get; NaN if there is one.
template <typename T>
__device__ __forceinline__ T largest(const T* x, i64 n, T* room) {
    Team block(256);
    T most = 0;
    for (i64 i = threadIdx.x; i < n; i += 256) most = Most::of(most, size_of(x[i]));
    return team_fold<Most>(most, block, room);
}

// A factor, a power of two, by which elements of up to this size get far from overflow and underflow when they are squared;
// NaN for an infinity or a NaN. The factor is no subnormal number, which would count as 0.
template <typename T>
__device__ __forceinline__ T to_unit(T most) {
    if (most == 0) return 1;
    T exponent = -floor(log2(most)), end = sizeof(T) == 4 ? 126 : 1022;
    exponent = exponent < -end ? -end : exponent > end ? end : exponent;
    return most < infinity<T>() ? exp2(exponent) : not_a_number<T>();
}

// Rotate pairs of the k vectors x, of n elements, until all are orthogonal; g, which starts as the identity, takes part. `one`
// is 1, or NaN.
template <typename T>
__device__ void rotate_all(T* x, T* g, i64 k, i64 n, T one) {
    __shared__ int rotated;
    Team warp(32);
    const T tolerance = unit_roundoff<T>() * sqrt((T)n);
    const i64 players = k + (k & 1), rounds = players - 1;
    for (i64 i = threadIdx.x; i < k * k; i += 256) g[i] = i / k == i % k ? one : one - one;
    for (int sweep = 0; sweep < 40; ++sweep) {
        __syncthreads();
        if (!threadIdx.x) rotated = 0;
        for (i64 round = 0; round < rounds; ++round) {
            __syncthreads();
            for (i64 p = threadIdx.x >> 5; p < players / 2; p += 8) {
                i64 i = (round + p) % rounds, j = p ? (round + rounds - p) % rounds : rounds;
                if (j >= k) continue;
                T *first = x + i * n, *second = x + j * n;
                T a = dot(first, first, n, warp), b = dot(second, second, n, warp), c = dot(first, second, n, warp);
                if (!(size_of(c) > tolerance * sqrt(a) * sqrt(b))) continue;
                T zeta = (b - a) / (2 * c);
                T tangent = (zeta < 0 ? -1 : 1) / (size_of(zeta) + sqrt(1 + zeta * zeta));
                T cosine = 1 / sqrt(1 + tangent * tangent), sine = cosine * tangent;
                for (i64 e = warp.rank; e < n + k; e += 32) {
                    T *u = e < n ? first + e : g + i * k + e - n, *v = e < n ? second + e : g + j * k + e - n;
                    T from = *u;
                    *u = cosine * from - sine * *v;
                    *v = sine * from + cosine * *v;
                }
                if (!warp.rank) atomicCAS(&rotated, 0, 1);
            }
        }
        __syncthreads();
        if (!rotated) return;
    }
}

// The place of values[i] in ascending or descending order; equal ones, and NaN, stay in their order.
template <typename T>
__device__ __forceinline__ i64 place_of(const T* values, i64 count, i64 i, bool descending) {
    i64 place = 0;
    for (i64 j = 0; j < count; ++j) {
        T a = descending ? values[i] : values[j], b = descending ? values[j] : values[i];
        place += a < b || (!(b < a) && j < i);
    }
    return place;
}

// -1 or 1: the sign of a vector's first component that is at least half as large as its largest. For one thread.
template <typename T>
__device__ __forceinline__ T sign_of(const T* x, i64 n, i64 stride) {
    T most = 0;
    for (i64 e = 0; e < n; ++e) most = Most::of(most, size_of(x[e * stride]));
    for (i64 e = 0; e < n; ++e)
        if (size_of(x[e * stride]) >= most / 2) return x[e * stride] < 0 ? (T)-1 : (T)1;
    return 1;
}

// Reflect the n vectors w, of m elements, so that the first min(m, n) become triangular: vector j keeps R down to its diagonal,
// and below that its reflection, whose first component is 1 and whose factor is in `factors`.
template <typename T>
__device__ void reflect_all(T* w, T* factors, i64 m, i64 n, T* room) {
    Team warp(32), block(256);
    for (i64 j = 0; j < n && j < m; ++j) {
        T* own = w + j * m;
        __syncthreads();
        // What is left of a column may be so small that its squares would be 0, or have few digits.
        T scale = to_unit(largest(own + j, m - j, room)), sum = 0;
        for (i64 i = j + 1 + threadIdx.x; i < m; i += 256) sum += own[i] * scale * (own[i] * scale);
        T below = team_fold<Sum>(sum, block, room), top = own[j] * scale;
        T length = sqrt(top * top + below), beta = top < 0 ? length : -length;
        T factor = below == 0 ? (T)0 : (beta - top) / beta, by = 1 / (top - beta);
        __syncthreads();
        for (i64 i = j + 1 + threadIdx.x; below != 0 && i < m; i += 256) own[i] = own[i] * scale * by;
        if (!threadIdx.x) {
            factors[j] = factor;
            if (below != 0) own[j] = beta / scale;
        }
        __syncthreads();
        for (i64 c = j + 1 + (threadIdx.x >> 5); factor != 0 && c < n; c += 8) {
            T* other = w + c * m;
            T along = factor * (other[j] + dot(own + j + 1, other + j + 1, m - j - 1, warp));
            __syncwarp();
            for (i64 i = j + warp.rank; i < m; i += 32) other[i] -= along * (i == j ? (T)1 : own[i]);
        }
    }
    __syncthreads();
}

// The first `count` columns of the product of k reflections of m elements, to q: a thread for each column.
template <typename T>
__device__ void unreflect_all(const T* w, const T* factors, i64 m, i64 k, T* q, i64 count, i64 down, i64 across) {
    for (i64 c = threadIdx.x; c < count; c += 256) {
        T* own = q + c * across;
        for (i64 i = 0; i < m; ++i) own[i * down] = i == c;
        for (i64 j = c < k ? c : k - 1; j >= 0; --j) {
            const T* v = w + j * m;
            T along = own[j * down];
            for (i64 i = j + 1; i < m; ++i) along += v[i] * own[i * down];
            along *= factors[j];
            own[j * down] -= along;
            for (i64 i = j + 1; i < m; ++i) own[i * down] -= along * v[i];
        }
    }
}

// Of a + bound I, which is positive semidefinite, the vectors are those of a; the values are v^T a v. `room` is 2 n n + n
// elements for each matrix.
template <typename T>
__global__ void symmetric(const T* a, T* values, T* vectors, T* room, i64 n) {
    __shared__ T shared[8];
    a += (i64)blockIdx.x * n * n, vectors += (i64)blockIdx.x * n * n, values += (i64)blockIdx.x * n;
    T *x = room + (i64)blockIdx.x * (2 * n * n + n), *g = x + n * n, *found = g + n * n;
    Team warp(32), block(256);
    T most = 0, bound = 0;
    for (i64 i = threadIdx.x; i < n; i += 256)
        for (i64 j = 0; j <= i; ++j) most = Most::of(most, size_of(a[i * n + j]));
    T scale = to_unit(team_fold<Most>(most, block, shared));
    for (i64 i = threadIdx.x; i < n; i += 256) {
        T sum = 0;
        for (i64 j = 0; j < n; ++j) sum += scale * size_of(i > j ? a[i * n + j] : a[j * n + i]);
        bound = Most::of(bound, sum);
    }
    bound = team_fold<Most>(bound, block, shared);
    for (i64 i = threadIdx.x; i < n * n; i += 256) {
        i64 r = i / n, c = i % n;
        x[i] = scale * a[r > c ? i : c * n + r] + (r == c ? bound : (T)0);
    }
    __syncthreads();
    rotate_all(x, g, n, n, scale / scale);
    for (i64 i = threadIdx.x >> 5; i < n; i += 8) {
        T *v = g + i * n, norm = dot(v, v, n, warp), sum = 0;
        for (i64 r = 0; r < n; ++r) {
            T part = 0;
            for (i64 c = warp.rank; c < n; c += 32) part += a[r > c ? r * n + c : c * n + r] * scale * v[c];
            sum += v[r] * team_fold<Sum>(part, warp, (T*)nullptr);
        }
        if (!warp.rank) found[i] = sum / norm / scale;
    }
    __syncthreads();
    for (i64 i = threadIdx.x; i < n; i += 256) {
        i64 to = place_of(found, n, i, false);
        T *v = g + i * n, norm = 0;
        for (i64 e = 0; e < n; ++e) norm += v[e] * v[e];
        T by = sign_of(v, n, 1) / sqrt(norm);
        values[to] = found[i];
        for (i64 e = 0; e < n; ++e) vectors[e * n + to] = v[e] * by;
    }
}

// Of an m by n matrix, the k = min(m, n) shorter side's vectors are rotated; the longer side's are what they become, over their
// lengths. Reflections of these give vectors for singular values of 0, too. `room` is 2 m n + k k + 2 k elements.
template <typename T>
__global__ void singular(const T* a, T* u, T* s, T* vh, T* room, i64 m, i64 n) {
    __shared__ T shared[8];
    const bool tall = m >= n;
    const i64 k = tall ? n : m, length = tall ? m : n;
    a += (i64)blockIdx.x * m * n, u += (i64)blockIdx.x * m * k, s += (i64)blockIdx.x * k, vh += (i64)blockIdx.x * k * n;
    T *x = room + (i64)blockIdx.x * (2 * m * n + k * k + 2 * k), *sorted = x + m * n, *g = sorted + m * n;
    T *found = g + k * k, *factors = found + k;
    T scale = to_unit(largest(a, m * n, shared));
    for (i64 i = threadIdx.x; i < m * n; i += 256) x[i] = scale * a[tall ? i % m * n + i / m : i];
    __syncthreads();
    rotate_all(x, g, k, length, scale / scale);
    Team warp(32);
    for (i64 i = threadIdx.x >> 5; i < k; i += 8) {
        T norm = sqrt(dot(x + i * length, x + i * length, length, warp));
        if (!warp.rank) found[i] = norm;
    }
    __syncthreads();
    // Where an element of the shorter side's vectors lies: of V^T's rows if tall, else of U's columns.
    T* turned = tall ? vh : u;
    const i64 next = tall ? n : 1, down = tall ? 1 : k;
    for (i64 i = threadIdx.x >> 5; i < k; i += 8) {
        i64 to = place_of(found, k, i, true);
        T norm = found[i], by = norm > 0 ? 1 / norm : norm;
        for (i64 e = warp.rank; e < length; e += 32) sorted[to * length + e] = x[i * length + e] * by;
        for (i64 e = warp.rank; e < k; e += 32) turned[to * next + e * down] = g[i * k + e];
        if (!warp.rank) s[to] = norm / scale;
    }
    reflect_all(sorted, factors, length, k, shared);
    T* straight = tall ? u : vh;
    const i64 beside = tall ? 1 : n, below = tall ? k : 1;
    unreflect_all(sorted, factors, length, k, straight, k, below, beside);
    __syncthreads();
    for (i64 i = threadIdx.x; i < k; i += 256) {
        // The reflections give each vector up to its sign, which is that of R's diagonal.
        T flip = sorted[i * length + i] < 0 ? (T)-1 : (T)1;
        for (i64 e = 0; e < length; ++e) straight[i * beside + e * below] *= flip;
        T sign = sign_of(u + i, m, k);
        for (i64 e = 0; e < m; ++e) u[e * k + i] *= sign;
        for (i64 e = 0; e < n; ++e) vh[i * n + e] *= sign;
    }
}

// Q has `count` columns. `room` is m n + min(m, n) elements.
template <typename T>
__global__ void orthogonal(const T* a, T* q, T* r, T* room, i64 m, i64 n, i64 count) {
    __shared__ T shared[8];
    const i64 k = m < n ? m : n;
    a += (i64)blockIdx.x * m * n, q += (i64)blockIdx.x * m * count, r += (i64)blockIdx.x * count * n;
    T *w = room + (i64)blockIdx.x * (m * n + k), *factors = w + m * n;
    T scale = to_unit(largest(a, m * n, shared));
    for (i64 i = threadIdx.x; i < m * n; i += 256) w[i] = scale * a[i % m * n + i / m];
    reflect_all(w, factors, m, n, shared);
    unreflect_all(w, factors, m, k, q, count, count, (i64)1);
    for (i64 i = threadIdx.x; i < count * n; i += 256) r[i] = i / n > i % n ? (T)0 : w[i % n * m + i / n] / scale;
}

// V diag(1 / s) U^T, without the singular values that are at most the larger of `atol` and `rtol` times the largest.
template <typename T>
__global__ void pseudoinverse(const T* u, const T* s, const T* vh, T* out, i64 m, i64 n, i64 total, T atol, T rtol) {
    const i64 k = m < n ? m : n;
    EACH(i, total) {
        i64 matrix = i / (m * n), row = i / m % n, column = i % m;
        const T *own = s + matrix * k, *left = u + matrix * m * k + column * k, *right = vh + matrix * k * n + row;
        T least = own[0] * rtol, sum = 0;
        least = least < atol ? atol : least;
        for (i64 j = 0; j < k; ++j)
            if (!(own[j] <= least)) sum += right[j * n] * left[j] / own[j];
        out[i] = sum;
    }
}
