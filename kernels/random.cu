// Random numbers by Philox 4x64-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).
//
// The same bits as NumPy's Philox, so that a seed gives the same uniforms on every device: the counter is raised before
// the first block is made, each 64-bit word is halved low part first for float, and the upper 24 (53) bits are the
// fraction. A state is four 64-bit words: key, unused, counter, unused.
//
// Traffic in bytes, n elements of s: uniform and normal write n s; dropout reads n s and writes n s. No mask is stored.

typedef unsigned long long u64;
typedef unsigned int u32;

struct Words { u64 w[4]; };

__device__ __forceinline__ Words philox(u64 key, u64 counter) {
    u64 k0 = key, k1 = 0;
    Words c = {{counter, 0, 0, 0}};
    for (int round = 0; round < 10; ++round) {
        const u64 m0 = 0xD2E7470EE14C6C93ull, m1 = 0xCA5A826395121157ull;
        u64 high0 = __umul64hi(m0, c.w[0]), low0 = m0 * c.w[0];
        u64 high1 = __umul64hi(m1, c.w[2]), low1 = m1 * c.w[2];
        c = {{high1 ^ c.w[1] ^ k0, low1, high0 ^ c.w[3] ^ k1, low0}};
        k0 += 0x9E3779B97F4A7C15ull;
        k1 += 0xBB67AE8584CAA73Bull;
    }
    return c;
}

// One of the four words, without an index that would put them on the stack.
__device__ __forceinline__ u64 pick(const Words& block, int k) {
    return k & 2 ? (k & 1 ? block.w[3] : block.w[2]) : (k & 1 ? block.w[1] : block.w[0]);
}

// The number at position i of the stream that begins at `state`.
__device__ __forceinline__ void uniform_at(const u64* state, long long i, float* out) {
    Words block = philox(state[0], state[2] + 1 + (u64)(i >> 3));
    u64 word = pick(block, (int)(i >> 1) & 3);
    u32 half = (i & 1) ? (u32)(word >> 32) : (u32)word;
    *out = __fmul_rn((float)(half >> 8), 1.0f / 16777216.0f);
}

__device__ __forceinline__ void uniform_at(const u64* state, long long i, double* out) {
    Words block = philox(state[0], state[2] + 1 + (u64)(i >> 2));
    *out = __dmul_rn((double)(pick(block, (int)i & 3) >> 11), 1.0 / 9007199254740992.0);
}

// low + u * (high - low) in two roundings, as NumPy's kernel does it: a fused multiply-add would change the last bit.
__device__ __forceinline__ float scaled(float u, double low, double width) {
    return __fadd_rn(__fmul_rn(u, (float)width), (float)low);
}
__device__ __forceinline__ double scaled(double u, double low, double width) {
    return __dadd_rn(__dmul_rn(u, width), low);
}

template <typename T>
__global__ void uniform(const u64* state, double low, double width, T* out, long long n) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        T u;
        uniform_at(state, i, &u);
        out[i] = scaled(u, low, width);
    }
}

// Pairs by Box and Muller's transform, in double, as on the CPU.
template <typename T>
__global__ void normal(const u64* state, double mean, double std, T* out, long long n) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long pair = (long long)blockIdx.x * blockDim.x + threadIdx.x; 2 * pair < n; pair += step) {
        double first, second, sine, cosine;
        uniform_at(state, 2 * pair, &first);
        uniform_at(state, 2 * pair + 1, &second);
        double radius = sqrt(log(1.0 - first) * (-2.0 * std * std));
        sincos(second * 6.283185307179586, &sine, &cosine);
        out[2 * pair] = (T)(cosine * radius + mean);
        if (2 * pair + 1 < n) out[2 * pair + 1] = (T)(sine * radius + mean);
    }
}

// The mask comes from single-precision uniforms whatever T is, as on the CPU, which starts anew every 32,768 elements'
// piece with the next number of the one stream: position i is number i.
template <typename T>
__global__ void dropout(const T* x, const u64* state, float p, double scale, T* out, long long n) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float u;
        uniform_at(state, i, &u);
        out[i] = x[i] * (T)(u >= p ? (float)scale : 0.0f);
    }
}

extern "C" __global__ void advance(u64* state, u64* out, u64 blocks) {
    for (int i = 0; i < 4; ++i) out[i] = state[i];
    state[2] += blocks;
}
