// Random numbers: uniform, normal, dropout, and advancing a generator. A seed gives the same uniforms on every device.
//
// Traffic in bytes, n elements of s: uniform and normal write n s; dropout reads n s and writes n s. No mask is stored.
// Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011; Box and Muller, A Note on the Generation of Random Normal
// Deviates, 1958.

#include "common.cuh"
#include "philox.cuh"

// Writes K neighbors, or fewer at the end.
template <typename T, typename A, int K>
__device__ __forceinline__ void put(T* out, i64 start, i64 n, const A (&v)[K]) {
    const int N = K < 16 / (int)sizeof(T) ? K : 16 / (int)sizeof(T);
    if (start + K <= n && !((u64)out & 15)) {
#pragma unroll
        for (int j = 0; j < K; j += N) {
            Pack<T, N> made;
#pragma unroll
            for (int k = 0; k < N; ++k) made.of[k] = (T)v[j + k];
            *(Pack<T, N>*)(out + start + j) = made;
        }
    } else {
#pragma unroll
        for (int k = 0; k < K; ++k)
            if (start + k < n) out[start + k] = (T)v[k];
    }
}

// Reads K neighbors, or fewer at the end.
template <typename T, typename A, int K>
__device__ __forceinline__ void get(const T* x, i64 start, i64 n, A (&v)[K]) {
    const int N = 16 / sizeof(T);
    if (start + K <= n && !((u64)x & 15)) {
#pragma unroll
        for (int j = 0; j < K; j += N) {
            Pack<T, N> found = *(const Pack<T, N>*)(x + start + j);
#pragma unroll
            for (int k = 0; k < N; ++k) v[j + k] = (A)found.of[k];
        }
    } else {
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] = start + k < n ? (A)x[start + k] : (A)0;
    }
}

// low + u * (high - low) in two roundings, as NumPy's kernel does it: a fused multiply-add would change the last bit.
__device__ __forceinline__ float scaled(float u, double low, double width) {
    return __fadd_rn(__fmul_rn(u, (float)width), (float)low);
}
__device__ __forceinline__ double scaled(double u, double low, double width) {
    return __dadd_rn(__dmul_rn(u, width), low);
}

template <typename T>
__global__ void uniform(const u64* state, double low, double width, T* out, i64 n) {
    const int K = 32 / sizeof(WIDE(T));
    EACH(block, (n + K - 1) / K) {
        WIDE(T) u[K];
        draw(state, block, u);
#pragma unroll
        for (int k = 0; k < K; ++k) u[k] = scaled(u[k], low, width);
        put(out, block * K, n, u);
    }
}

// Pairs by the Box-Muller transform, in double, as on the CPU.
template <typename T>
__global__ void normal(const u64* state, double mean, double std, T* out, i64 n) {
    EACH(block, (n + 3) / 4) {
        double u[4];
        WIDE(T) v[4];
        draw(state, block, u);
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            double sine, cosine, radius = sqrt(log(1.0 - u[k]) * (-2.0 * std * std));
            sincos(u[k + 1] * 6.283185307179586, &sine, &cosine);
            v[k] = (WIDE(T))(cosine * radius + mean);
            v[k + 1] = (WIDE(T))(sine * radius + mean);
        }
        put(out, block * 4, n, v);
    }
}

// The mask comes from single-precision uniforms for every T, as on the CPU: element i uses number i of the stream. The TEAM threads
// that draw for TEAM accesses of 16 bytes each make these together, one block after another, so that a warp moves whole sectors.
template <typename T>
__global__ void dropout(const T* x, const u64* state, float p, double scale, T* out, i64 n) {
    const int N = 16 / sizeof(T), TEAM = 8 / N;
    int lane = threadIdx.x & 31, rank = lane % TEAM;
    // The threads of a warp exchange bits as long as one of them has elements.
    for (i64 block = (i64)blockIdx.x * 256 + threadIdx.x; (block - lane) * 8 < n; block += (i64)gridDim.x * 256) {
        float u[8];
        u32 kept = 0;
        // First, so that memory is busy while the numbers are drawn.
        WIDE(T) v[TEAM][N];
#pragma unroll
        for (int k = 0; k < TEAM; ++k) get(x, (block - rank + k) * 8 + rank * N, n, v[k]);
        draw(state, block, u);
#pragma unroll
        for (int k = 0; k < 8; ++k) kept |= (u32)(u[k] >= p) << k;
#pragma unroll
        for (int k = 0; k < TEAM; ++k) {
            u32 bits = __shfl_sync(0xffffffffu, kept, lane - rank + k) >> rank * N;
#pragma unroll
            for (int j = 0; j < N; ++j) v[k][j] *= (WIDE(T))(bits >> j & 1 ? (float)scale : 0.0f);
            put(out, (block - rank + k) * 8 + rank * N, n, v[k]);
        }
    }
}

extern "C" __global__ void advance(u64* state, u64* out, u64 blocks) {
    for (int i = 0; i < 4; ++i) out[i] = state[i];
    state[2] += blocks;
}
