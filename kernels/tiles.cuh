// Tiles of matrix products whose operands are gathered: a block of 128 threads computes M x N elements, 4096 together (2048 in
// double), a warp 32 x 32 of them (16 x 32).

// The columns of a tile with M rows: each thread computes 128 bytes of sums.
template <int M, typename A>
__device__ __forceinline__ constexpr int width() { return 16384 / (int)sizeof(A) / M; }

// -- a thread's part of a tile ------------------------------------------------------------------------------------------
// Shared memory holds words, each with STEPS steps of k of one row or column; row m of depth d is at m ^ swizzle(d), which keeps
// stores and loads apart in banks on tensor cores. A slab is DEEP words deep, fewer where they are many: they pass
// through registers, of which there are none left. A thread's elements stand in ROWS rows and in GROUPS groups of SIDE neighbors.

template <typename T, int M, bool Cores> struct Part;

// By multiplications of single numbers: 8 x 4 elements (4 x 4).
template <typename T, int M>
struct Part<T, M, false> {
    typedef WIDE(T) A;
    typedef A Word;
    static const int STEPS = 1, ROWS = 32 / sizeof(A), GROUPS = 1, SIDE = 4, N = width<M, A>(), PAST = 4;
    static const int DEEP = (N > 64 ? 32 : 64) / sizeof(A);
    static const int UNROLLED = sizeof(A) > 4 ? 2 : DEEP;  // with more there are not enough registers for double
    A made[ROWS][4] = {};
    u32 down, across;

    __device__ __forceinline__ Part() {
        u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, high = M / (4 * ROWS);
        down = warp % high * 4 + lane / 8;
        across = warp / high * 8 + lane % 8;
    }
    static __device__ __forceinline__ Word word(const T* x) { return (A)x[0]; }
    static __device__ __forceinline__ A total(Word x) { return x; }
    static __device__ __forceinline__ u32 swizzle(u32) { return 0; }
    __device__ __forceinline__ int row(int i) const { return down * ROWS + i; }
    __device__ __forceinline__ int column(int) const { return across * 4; }
    __device__ __forceinline__ A of(int, int i, int j) const { return made[i][j]; }
    __device__ __forceinline__ void add(const Word (*a)[M + PAST], const Word (*b)[N + PAST]) {
#pragma unroll UNROLLED
        for (int d = 0; d < DEEP; ++d) {
            Pack<A, 4> u[ROWS / 4], v = *(const Pack<A, 4>*)&b[d][across * 4];
#pragma unroll
            for (int i = 0; i < ROWS / 4; ++i) u[i] = *(const Pack<A, 4>*)&a[d][down * ROWS + i * 4];
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) made[i][j] += u[i / 4].of[i % 4] * v.of[j];
        }
    }
};

// By tensor cores: 2 x 4 products of 16 x 8 elements by a warp, of which a thread has two rows of two neighbors each.
template <typename T, int M>
struct Part<T, M, true> {
    typedef u32 Word;
    static const int STEPS = 4 / sizeof(T), ROWS = 4, GROUPS = 4, SIDE = 2, N = width<M, float>(), PAST = 8;
    static const int DEEP = STEPS * N > 64 ? 8 : 16;
    float made[2][4][4] = {};
    u32 down, across, group, rank;

    __device__ __forceinline__ Part() {
        u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        down = warp % (M / 32) * 32;
        across = warp / (M / 32) * 32;
        group = lane / 4;
        rank = lane % 4;
    }
    static __device__ __forceinline__ Word word(const T* x) { return cores_word(x); }
    static __device__ __forceinline__ float total(Word x) { return cores_total<T>(x); }
    static __device__ __forceinline__ u32 swizzle(u32 d) { return d / 4 * (32 / DEEP); }
    __device__ __forceinline__ int row(int i) const { return down + i * 8 + group; }
    __device__ __forceinline__ int column(int g) const { return across + g * 8 + rank * 2; }
    __device__ __forceinline__ float of(int g, int i, int j) const { return made[i / 2][g][i % 2 * 2 + j]; }
    __device__ __forceinline__ void add(const Word (*a)[M + PAST], const Word (*b)[N + PAST]) {
#pragma unroll
        for (int d = 0; d < DEEP; d += 8) {
            u32 u[2][4], v[4][2];
            // Constants are added to pointers, so that they are part of the loads: each word's place would take a register.
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                u32 deep = d + j * 4, place = group ^ swizzle(deep);
                const Word *left = &a[deep + rank][down + place], *right = &b[deep + rank][across + place];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    u[i / 2][j * 2 + i % 2] = left[i * 8];
                    v[i][j] = right[i * 8];
                }
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) cores_add<T>(made[i][j], u[i], v[j]);
        }
    }
};

// -- tiles --------------------------------------------------------------------------------------------------------------

// One tile of a product whose k goes from `from` to `to`: left is [rows, k] with `stride` elements between rows,
// steps(k, offset) gives the place of a step of k and the offset of its column of left, right(column(n), step) the element of the
// other operand, whose neighbors in memory are steps if Along, else columns: threads of a warp read neighbors. Row m of the
// result, n = 0, is at out + m * step + where(n). With `sums`, these get the sums of left's rows. While the block works on one slab of
// DEEP words, the next one is on its way.
template <int M, bool Cores, bool Along, typename Step, typename T, typename R, typename Steps, typename Column, typename Right,
          typename Where>
__device__ __forceinline__ void tile(i64 rows, i64 columns, i64 from, i64 to, i64 block, const T* left, i64 stride,
                                     const Steps& steps, const Column& column, const Right& right, const T* bias, R* out,
                                     i64 step, const Where& where, WIDE(T)* sums = 0) {
    typedef Part<T, M, Cores> Mine;
    typedef typename Mine::Word Word;
    const int N = Mine::N, DEEP = Mine::DEEP, STEPS = Mine::STEPS, OWN = 128 / DEEP, LEFTS = M / OWN, RIGHTS = DEEP * N / 128;
    alignas(32) __shared__ Word a[2][DEEP][M + Mine::PAST], b[2][DEEP][N + Mine::PAST];
    __shared__ Step places[2][STEPS][DEEP];
    __shared__ i64 offsets[2][STEPS][DEEP];
    u32 t = threadIdx.x;
    // Consecutive blocks take tiles of one column, so that they share what they read.
    i64 over = (rows + M - 1) / M, first_row = block % over * M, first_column = block / over * N;

    // A slab takes three steps: its places, what is read there, and that in shared memory.
    auto plan = [&](int side, i64 k) {
        if (t < DEEP * STEPS) {
            i64 offset = -1;
            Step place = {0, NOWHERE, 0};
            if (k + t < to) place = steps(k + t, offset);
            places[side][t / DEEP][t % DEEP] = place;
            offsets[side][t / DEEP][t % DEEP] = offset;
        }
    };
    auto column_of = [&](u32 n) { return column(first_column + n < columns ? first_column + n : 0); };
    decltype(column(0)) own;
    __shared__ decltype(column(0)) owns[Along ? N : 1];
    if constexpr (!Along) own = column_of(t % N);
    else if (t < N) owns[t] = column_of(t);
    T lefts[LEFTS][STEPS], rights[RIGHTS][STEPS];
    // Rows beyond the last one are computed as the last one, and not stored.
    u32 last = (u32)(rows - 1 - first_row);
    auto start = [&](u32 m) { return (m < last ? m : last) * (u32)stride; };
    left += first_row * stride;
    auto fetch = [&](int side) {
#ifdef __CUDACC_RTC__
        // What depends on the thread would be kept in registers, of which there are none left.
        if constexpr (Along) asm volatile("" : "+r"(t));
#endif
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            i64 offset = offsets[side][k][t % DEEP];
            const T* from = kept(left + offset);
#pragma unroll
            for (int j = 0; j < LEFTS; ++j) lefts[j][k] = (T)(WIDE(T))0;
            if (offset >= 0)
#pragma unroll
                for (int j = 0; j < LEFTS; ++j) lefts[j][k] = from[start(t / DEEP + j * OWN)];
#pragma unroll
            for (int j = 0; j < RIGHTS && !Along; ++j) rights[j][k] = right(own, places[side][k][t / N + j * (128 / N)]);
            if constexpr (Along) {
                Step place = places[side][k][t % DEEP];
#pragma unroll
                for (int j = 0; j < RIGHTS; ++j) rights[j][k] = right(owns[t / DEEP + j * OWN], place);
            }
        }
    };
    auto leave = [&](int side) {
#pragma unroll
        for (int j = 0; j < LEFTS; ++j) a[side][t % DEEP][(t / DEEP ^ Mine::swizzle(t % DEEP)) + j * OWN] = Mine::word(lefts[j]);
#pragma unroll
        for (int j = 0; j < RIGHTS; ++j) {
            if constexpr (Along) b[side][t % DEEP][(t / DEEP ^ Mine::swizzle(t % DEEP)) + j * OWN] = Mine::word(rights[j]);
            // As 128 / N is at most 4, the swizzle does not depend on the thread.
            else b[side][t / N + j * (128 / N)][t % N ^ Mine::swizzle(j * (128 / N))] = Mine::word(rights[j]);
        }
    };

    Mine mine;
    WIDE(T) sum = 0;
    plan(0, from);
    __syncthreads();
    fetch(0);
    plan(1, from + DEEP * STEPS);
    leave(0);
    __syncthreads();
    int side = 0;
    for (i64 k = from; k < to; k += DEEP * STEPS, side ^= 1) {
        bool more = k + DEEP * STEPS < to;
        if (more) {
            fetch(side ^ 1);
            plan(side, k + 2 * DEEP * STEPS);
        }
        mine.add(a[side], b[side]);
        if (sums && t < M)
#pragma unroll 4
            for (int d = 0; d < DEEP; ++d) sum += Mine::total(a[side][d][t ^ Mine::swizzle(d)]);
        if (more) leave(side ^ 1);
        __syncthreads();
    }

    if (sums && t < M && t <= last) sums[first_row + t] = sum;
    typedef Pack<R, Mine::SIDE> Some;
    const int SIDE = Mine::SIDE;
#pragma unroll
    for (int g = 0; g < Mine::GROUPS; ++g) {
        i64 n = first_column + mine.column(g), at[SIDE];
#pragma unroll
        for (int j = 0; j < SIDE; ++j) at[j] = where(n + j < columns ? n + j : columns - 1);
        bool whole = n + SIDE <= columns && at[SIDE - 1] == at[0] + SIDE - 1 && !(step & (SIDE - 1))
            && !((u64)(out + at[0]) & (sizeof(Some) - 1));
#pragma unroll
        for (int i = 0; i < Mine::ROWS; ++i) {
            i64 m = first_row + mine.row(i);
            if (m >= rows) break;
            WIDE(T) shift = bias ? (WIDE(T))bias[m] : (WIDE(T))0;
            Some some;
#pragma unroll
            for (int j = 0; j < SIDE; ++j) some.of[j] = (R)(mine.of(g, i, j) + shift);
            if (whole) *(Some*)(out + m * step + at[0]) = some;
            else {
#pragma unroll
                for (int j = 0; j < SIDE; ++j)
                    if (n + j < columns) out[m * step + at[j]] = some.of[j];
            }
        }
    }
}
