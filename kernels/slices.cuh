// Tiles of products with few elements and many steps, in float or double: a block of 512 threads computes one. Its threads are
// groups, each with the whole tile, and each takes its slice of every slab of k; their sums are added up at the end, in order. So
// one block keeps a multiprocessor busy, and leaves one partial result, where four small blocks would leave four.

template <int M, typename A>
struct Slices {
    typedef Part<A, M, false> Mine;
    // Threads of a group have ROWS x 4 elements each.
    static const int ROWS = Mine::ROWS, N = 256 / sizeof(A), MEMBERS = M * N / (4 * ROWS), GROUPS = 512 / MEMBERS;
    static const int DEEP = 128 / sizeof(A), EACH = DEEP / GROUPS, OWN = 512 / DEEP, LEFTS = M / OWN, RIGHTS = N / OWN;
    // Row m of depth d is at m ^ swizzle(d), so that a warp stores to different banks. In a group's slice that only changes the
    // order of four neighbors.
    static __device__ __forceinline__ u32 swizzle(u32 d) { return d / (32 / sizeof(A)); }
};

// The arguments are those of a tile; threads of a warp read neighbors along k.
template <int M, typename T, typename A, typename Steps, typename Column, typename Right>
__device__ __forceinline__ void slices(i64 rows, i64 columns, i64 from, i64 to, i64 block, const T* left, i64 stride,
                                       const Steps& steps, const Column& column, const Right& right, A* out, A* sums) {
    typedef Slices<M, A> How;
    const int ROWS = How::ROWS, N = How::N, MEMBERS = How::MEMBERS, DEEP = How::DEEP, EACH = How::EACH, OWN = How::OWN;
    const int LEFTS = How::LEFTS, RIGHTS = How::RIGHTS, HIGH = M + 4, ACROSS = N + 4, SLAB = DEEP * (HIGH + ACROSS);
    // Two slabs of both operands; then the sums of a group, and those of its rows.
    alignas(32) __shared__ A room[2 * SLAB];
    static_assert(MEMBERS * (ROWS * 4 + 1) <= 2 * SLAB, "a group's sums take the slabs' place");
    __shared__ Far places[2][DEEP];
    __shared__ i64 offsets[2][DEEP];
    const u32 t = threadIdx.x, deep = t % DEEP, high = t / DEEP, group = t / MEMBERS, member = t % MEMBERS;
    i64 over = (rows + M - 1) / M, first_row = block % over * M, first_column = block / over * N;

    auto plan = [&](int side, i64 k) {
        if (t < DEEP) {
            i64 offset = -1;
            Far place = {0, NOWHERE, 0};
            if (k + t < to) place = steps(k + t, offset);
            places[side][t] = place;
            offsets[side][t] = offset;
        }
    };
    __shared__ decltype(column(0)) owns[N];
    if (t < N) owns[t] = column(first_column + t < columns ? first_column + t : 0);
    // Rows beyond the last one are computed as the last one, and not stored.
    u32 last = (u32)(rows - 1 - first_row);
    left += first_row * stride;
    T lefts[LEFTS], rights[RIGHTS];
    auto fetch = [&](int side) {
        i64 offset = offsets[side][deep];
        Far place = places[side][deep];
        const T* start = kept(left + offset);
        u32 first = high;
#ifdef __CUDACC_RTC__
        // What depends on the thread would be kept in registers, of which there are none left.
        asm volatile("" : "+r"(first));
#endif
#pragma unroll
        for (int j = 0; j < LEFTS; ++j) {
            u32 m = first + j * OWN;
            lefts[j] = (T)(A)0;
            if (offset >= 0) lefts[j] = start[(m < last ? m : last) * (u32)stride];
        }
#pragma unroll
        for (int j = 0; j < RIGHTS; ++j) rights[j] = right(owns[first + j * OWN], place);
    };
    auto leave = [&](int side) {
        A* slab = room + side * SLAB;
        u32 at = high ^ How::swizzle(deep);
#pragma unroll
        for (int j = 0; j < LEFTS; ++j) slab[deep * HIGH + at + j * OWN] = (A)lefts[j];
#pragma unroll
        for (int j = 0; j < RIGHTS; ++j) slab[DEEP * HIGH + deep * ACROSS + at + j * OWN] = (A)rights[j];
    };

    const u32 warp = member / 32, lane = member % 32, down = (warp % (M / (4 * ROWS)) * 4 + lane / 8) * ROWS,
              across = (warp / (M / (4 * ROWS)) * 8 + lane % 8) * 4, mixed = How::swizzle(group * EACH);
    A made[ROWS][4] = {}, sum = 0;
    plan(0, from);
    __syncthreads();
    fetch(0);
    plan(1, from + DEEP);
    leave(0);
    __syncthreads();
    int side = 0;
    for (i64 k = from; k < to; k += DEEP, side ^= 1) {
        bool more = k + DEEP < to;
        if (more) {
            fetch(side ^ 1);
            plan(side, k + 2 * DEEP);
        }
        const A *a = room + side * SLAB + group * EACH * HIGH, *b = room + side * SLAB + DEEP * HIGH + group * EACH * ACROSS;
#pragma unroll 4
        for (int d = 0; d < EACH; ++d) {
            Pack<A, 4> u[ROWS / 4], v = *(const Pack<A, 4>*)&b[d * ACROSS + across];
#pragma unroll
            for (int i = 0; i < ROWS / 4; ++i) u[i] = *(const Pack<A, 4>*)&a[d * HIGH + down + i * 4];
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) made[i][j] += u[i / 4].of[i % 4] * v.of[j];
        }
        if (sums && member < M)
#pragma unroll
            for (int d = 0; d < EACH; ++d) sum += a[d * HIGH + (member ^ mixed)];
        if (more) leave(side ^ 1);
        __syncthreads();
    }

    // Element i, j of a group is element i ^ mixed, j ^ mixed of the first one, whose slices are not mixed.
    for (u32 other = 1; other < How::GROUPS; ++other) {
        if (group == other) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) room[((i ^ mixed) * 4 + (j ^ mixed)) * MEMBERS + member] = made[i][j];
            room[ROWS * 4 * MEMBERS + member] = sum;
        }
        __syncthreads();
        if (!group) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) made[i][j] += room[(i * 4 + j) * MEMBERS + member];
            sum += room[ROWS * 4 * MEMBERS + member];
        }
        __syncthreads();
    }
    if (group) return;
    if (sums && member < M && member <= last) sums[first_row + member] = sum;
    i64 n = first_column + across;
    bool whole = n + 4 <= columns && !(columns & 3) && !((u64)out & (sizeof(Pack<A, 4>) - 1));
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        i64 m = first_row + down + i;
        if (m >= rows) break;
        Pack<A, 4> some;
#pragma unroll
        for (int j = 0; j < 4; ++j) some.of[j] = made[i][j];
        if (whole) *(Pack<A, 4>*)(out + m * columns + n) = some;
        else {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (n + j < columns) out[m * columns + n + j] = some.of[j];
        }
    }
}
