// Attention on tensor cores, for floats of 16 bits: a block has 64 rows of its own, a warp 16 of them, as in Dao,
// FlashAttention-2, arXiv:2307.08691. Scores and sums are in float; probabilities and their gradients are rounded to T before
// they are multiplied.
//
// Rows lie in shared memory as they do in the tensors, 8 elements longer: then neither of the two ways to read them makes
// lanes of a warp wait for a bank. A thread has elements (group, rank * 2 + 0 and 1) and (group + 8, the same) of each product
// of 16 x 8 elements, see cores.cuh; as those of neighboring products, they are also its words of a left operand 16 columns deep.

// Rows of the other side at a time.
template <int W> struct Tile { static const int FORWARD = W > 64 ? 32 : 64, GRADIENTS = W > 64 ? 16 : 32; };

__device__ __forceinline__ int core_group() { return (threadIdx.x & 31) / 4; }
__device__ __forceinline__ int core_rank() { return threadIdx.x & 3; }
// The row of the block that sums 0 and 1 of this thread (half 0) or 2 and 3 (half 1) belong to.
__device__ __forceinline__ int core_row(int half) { return (threadIdx.x >> 5) * 16 + half * 8 + core_group(); }

// Two neighbors as one word.
template <typename T> __device__ __forceinline__ u32 core_pair(const T* x) { return *(const u32*)x; }
#ifdef __CUDACC_RTC__
__device__ __forceinline__ u32 core_pair(half, float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ u32 core_pair(bfloat, float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#else
template <typename T> u32 core_pair(T, float low, float high) { return (u32)T(low).bits | (u32)T(high).bits << 16; }
#endif

// The dot products of the warp's 16 rows with each of some rows.
template <typename T, int Rows, int Pitch>
__device__ __forceinline__ void scores_on_cores(const T (&rows)[Rows][Pitch], const T (&own)[64][Pitch],
                                                float (&made)[Rows / 8][4], i64 width) {
    const int group = core_group(), rank = core_rank();
#pragma unroll
    for (int n = 0; n < Rows / 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) made[n][j] = 0;
#pragma unroll
    for (int e = 0; e < Pitch - 8; e += 16) {
        if (e >= width) break;
        u32 left[4], right[2];
#pragma unroll
        for (int w = 0; w < 4; ++w) left[w] = core_pair(&own[core_row(w % 2)][e + rank * 2 + w / 2 * 8]);
#pragma unroll
        for (int n = 0; n < Rows / 8; ++n) {
#pragma unroll
            for (int w = 0; w < 2; ++w) right[w] = core_pair(&rows[n * 8 + group][e + rank * 2 + w * 8]);
            cores_add<T>(made[n], left, right);
        }
    }
}

// Adds some rows, each times its weight, to the sums of the warp's 16 rows. The words of a right operand are neighbors in a
// column: two words that are neighbors in rows make those of two columns, which belong to neighboring products.
template <typename T, int Rows, int Pitch, int Products>
__device__ __forceinline__ void gather_on_cores(const T (&rows)[Rows][Pitch], const float (&weights)[Rows / 8][4],
                                                float (&sums)[Products][4], i64 width) {
    const int group = core_group(), rank = core_rank();
#pragma unroll
    for (int k = 0; k < Rows; k += 16) {
        u32 left[4], right[2][2];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const float* pair = &weights[k / 8 + w / 2][w % 2 * 2];
            left[w] = core_pair(T(), pair[0], pair[1]);
        }
#pragma unroll
        for (int n = 0; n < Products; n += 2) {
            if (n * 8 >= width) break;
#pragma unroll
            for (int w = 0; w < 2; ++w) {
                u32 above = core_pair(&rows[k + w * 8 + rank * 2][n * 8 + group * 2]);
                u32 below = core_pair(&rows[k + w * 8 + rank * 2 + 1][n * 8 + group * 2]);
                right[0][w] = (above & 0xffff) | below << 16;
                right[1][w] = above >> 16 | (below & 0xffff0000);
            }
            cores_add<T>(sums[n], left, right[0]);
            cores_add<T>(sums[n + 1], left, right[1]);
        }
    }
}

// Stores sums as gather_on_cores makes them: a thread has four neighbors of a row in two neighboring products.
template <typename T, int Products>
__device__ __forceinline__ void leave_from_cores(T* x, const i64 (&strides)[4], i64 start, i64 positions, i64 width, bool whole,
                                                 const float (&sums)[Products][4], const float (&scale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        i64 row = start + core_row(half);
        if (row >= positions) continue;
#pragma unroll
        for (int n = 0; n < Products; n += 2) {
            i64 e = n * 8 + core_rank() * 4;
            Pack<T, 4> made;
#pragma unroll
            for (int j = 0; j < 4; ++j) made.of[j] = (T)(sums[n + j % 2][half * 2 + j / 2] * scale[half]);
            T* to = x + row * strides[2] + e * strides[3];
            if (whole) {
                if (e < width) *(Pack<T, 4>*)to = made;
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (e + j < width) to[j * strides[3]] = made.of[j];
            }
        }
    }
}

// Folds a number of each thread over the four threads that share rows.
template <typename Op>
__device__ __forceinline__ float fold_of_cores(float x) {
    x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return Op::of(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// The result for 64 queries; arguments as those of `attend`.
template <typename T, int W>
__device__ __forceinline__ void attend_on_cores(i64 head, i64 start, const T* q, const T* k, const T* v, const T* mask,
                                                const u64* state, T* out, float* lse, const Attention& a) {
    const int KEYS = Tile<W>::FORWARD;
    alignas(16) __shared__ T own[64][W + 8], keys[KEYS][W + 8], values[KEYS][W + 8];
    __shared__ u32 kept[64][KEYS / 8];
    auto same = [](T x) { return x; };
    fetch<W>(own, q, a.q, start, a.length, a.width, a.whole, same);
    float top[2] = {-infinity<float>(), -infinity<float>()}, total[2] = {}, s[KEYS / 8][4], sums[W / 8][4] = {};
    i64 seen = a.causal && start + 64 < a.keys ? start + 64 : a.keys;
    for (i64 first = 0; first < seen; first += KEYS) {
        __syncthreads();
        fetch<W>(keys, k, a.k, first, a.keys, a.width, a.whole, same);
        fetch<W>(values, v, a.v, first, a.keys, a.values, a.whole, same);
        draw_kept(kept, state, a, head * a.length + start, first / 8);
        __syncthreads();
        scores_on_cores(keys, own, s, a.width);
        bool edge = at_an_edge(mask, a, start, 64, first, KEYS);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = top[half], sum = 0;
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float& score = s[n][half * 2 + j];
                    score *= (float)a.scale;
                    if (edge) score = masked(score, mask, a, start + core_row(half), first + n * 8 + core_rank() * 2 + j);
                    most = Most::of(score, most);
                }
            most = fold_of_cores<Most>(most);
            // Only masked scores so far: there is no maximum to subtract.
            float level = most == -infinity<float>() ? 0 : most, shrink = exp(top[half] - level);
            top[half] = most;
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float& score = s[n][half * 2 + j];
                    score = exp(score - level);
                    sum += score;
                    if (state) score *= left_of<float>(kept[core_row(half)], a, n * 8 + core_rank() * 2 + j);
                }
            total[half] = total[half] * shrink + sum;
#pragma unroll
            for (int n = 0; n < W / 8; ++n) sums[n][half * 2] *= shrink, sums[n][half * 2 + 1] *= shrink;
        }
        gather_on_cores(values, s, sums, a.values);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        i64 row = start + core_row(half);
        total[half] = fold_of_cores<Sum>(total[half]);
        if (!core_rank() && row < a.length) lse[row] = lse_of(top[half], total[half], a);
        total[half] = total[half] == 0 ? 0 : 1 / total[half];
    }
    leave_from_cores(out, a.out, start, a.length, a.values, a.whole, sums, total);
}

// The shared memory of a gradient's block; of its rows or the tile's, whichever are queries, also lse, dy . out and kept scores.
template <typename T, int W, int Queries>
struct HeldOnCores {
    alignas(16) T own[64][W + 8], slope[64][W + 8], rows[Tile<W>::GRADIENTS][W + 8], others[Tile<W>::GRADIENTS][W + 8];
    float delta[Queries], level[Queries];
    u32 kept[Queries][Queries == 64 ? Tile<W>::GRADIENTS / 8 : 8];
};

// dq of 64 queries of a head.
template <typename T, int W>
__device__ __forceinline__ void gradient_of_queries_on_cores(HeldOnCores<T, W, 64>& held, i64 head, i64 start, const T* dy,
                                                             const T* q, const T* k, const T* v, const T* mask, const T* out,
                                                             const float* lse, const u64* state, T* dq, const Attention& a) {
    const int KEYS = Tile<W>::GRADIENTS;
    auto& [own, slope, keys, values, delta, level, kept] = held;
    auto same = [](T x) { return x; };
    fetch<W>(own, q, a.q, start, a.length, a.width, a.whole, same);
    fetch<W>(slope, dy, a.dy, start, a.length, a.values, a.whole, same);
    slopes(delta, dy, out, a, start);
    if (threadIdx.x < 64) level[threadIdx.x] = start + threadIdx.x < a.length ? lse[start + threadIdx.x] : 0;
    float s[KEYS / 8][4], g[KEYS / 8][4], sums[W / 8][4] = {};
    i64 seen = a.causal && start + 64 < a.keys ? start + 64 : a.keys;
    for (i64 first = 0; first < seen; first += KEYS) {
        __syncthreads();
        fetch<W>(keys, k, a.k, first, a.keys, a.width, a.whole, same);
        fetch<W>(values, v, a.v, first, a.keys, a.values, a.whole, same);
        draw_kept(kept, state, a, head * a.length + start, first / 8);
        __syncthreads();
        scores_on_cores(keys, own, s, a.width);
        scores_on_cores(values, slope, g, a.values);
        bool edge = at_an_edge(mask, a, start, 64, first, KEYS);
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                int row = core_row(j / 2), key = n * 8 + core_rank() * 2 + j % 2;
                float score = s[n][j] * (float)a.scale;
                if (edge) score = masked(score, mask, a, start + row, first + key);
                float slope_of = state ? g[n][j] * left_of<float>(kept[row], a, key) : g[n][j];
                s[n][j] = share(score, level[row]) * (slope_of - delta[row]);
            }
        gather_on_cores(keys, s, sums, a.width);
    }
    leave_from_cores(dq, a.dq, start, a.length, a.width, a.whole, sums, {(float)a.scale, (float)a.scale});
}

// dk and dv of 64 keys of a head: the same with the roles exchanged, so that columns are queries.
template <typename T, int W>
__device__ __forceinline__ void gradients_of_keys_on_cores(HeldOnCores<T, W, Tile<W>::GRADIENTS>& held, i64 head, i64 start,
                                                           const T* dy, const T* q, const T* k, const T* v, const T* mask,
                                                           const T* out, const float* lse, const u64* state, T* dk, T* dv,
                                                           const Attention& a) {
    const int QUERIES = Tile<W>::GRADIENTS;
    auto& [own, value, queries, cotangents, delta, level, kept] = held;
    auto same = [](T x) { return x; };
    fetch<W>(own, k, a.k, start, a.keys, a.width, a.whole, same);
    fetch<W>(value, v, a.v, start, a.keys, a.values, a.whole, same);
    float s[QUERIES / 8][4], g[QUERIES / 8][4], dks[W / 8][4] = {}, dvs[W / 8][4] = {};
    // Queries before the first key are masked for all of these keys.
    for (i64 first = a.causal ? start / QUERIES * QUERIES : 0; first < a.length; first += QUERIES) {
        __syncthreads();
        fetch<W>(queries, q, a.q, first, a.length, a.width, a.whole, same);
        fetch<W>(cotangents, dy, a.dy, first, a.length, a.values, a.whole, same);
        slopes(delta, dy, out, a, first);
        if (threadIdx.x < QUERIES) level[threadIdx.x] = first + threadIdx.x < a.length ? lse[first + threadIdx.x] : 0;
        draw_kept(kept, state, a, head * a.length + first, start / 8);
        __syncthreads();
        scores_on_cores(queries, own, s, a.width);
        scores_on_cores(cotangents, value, g, a.values);
        bool edge = at_an_edge(mask, a, first, QUERIES, start, 64);
#pragma unroll
        for (int n = 0; n < QUERIES / 8; ++n)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                int key = core_row(j / 2), query = n * 8 + core_rank() * 2 + j % 2;
                float score = s[n][j] * (float)a.scale;
                if (edge) score = masked(score, mask, a, first + query, start + key);
                float p = share(score, level[query]), left = state ? left_of<float>(kept[query], a, key) : 1.0f;
                s[n][j] = p * left;
                g[n][j] = p * (g[n][j] * left - delta[query]);
            }
        gather_on_cores(cotangents, s, dvs, a.values);
        gather_on_cores(queries, g, dks, a.width);
    }
    leave_from_cores(dk, a.dk, start, a.keys, a.width, a.whole, dks, {(float)a.scale, (float)a.scale});
    leave_from_cores(dv, a.dv, start, a.keys, a.values, a.whole, dvs, {1.0f, 1.0f});
}
