// Philox 4x64-10, one block of numbers at a time (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).
//
// The same bits as NumPy's: the counter is incremented before the first block is computed; for float each 64-bit word is split
// into halves, the low one first; and the upper 24 (53) bits are the fraction. A state is four 64-bit words: key, unused, counter,
// unused.

struct Words { u64 w[4]; };

__device__ __forceinline__ Words philox(u64 key, u64 counter, u64 next = 0) {
    u64 k0 = key, k1 = 0;
    Words c = {{counter, next, 0, 0}};
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

// The numbers of one block of the stream that begins at `state`: eight in single or four in double precision. An attempt after the
// first reads a stream of its own.
__device__ __forceinline__ void draw(const u64* state, i64 block, float (&u)[8]) {
    Words words = philox(state[0], state[2] + 1 + (u64)block);
#pragma unroll
    for (int k = 0; k < 8; ++k)
        u[k] = __fmul_rn((float)((u32)(k & 1 ? words.w[k / 2] >> 32 : words.w[k / 2]) >> 8), 1.0f / 16777216.0f);
}

__device__ __forceinline__ void draw(const u64* state, i64 block, double (&u)[4], u64 attempt = 0) {
    Words words = philox(state[0], state[2] + 1 + (u64)block, attempt);
#pragma unroll
    for (int k = 0; k < 4; ++k) u[k] = __dmul_rn((double)(words.w[k] >> 11), 1.0 / 9007199254740992.0);
}
