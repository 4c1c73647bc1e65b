// Positions along a dimension, and a stable sort of them: for each digit, from the lowest, tally and deal. A position has one
// element in each row of a layout, whose tensors 0, 1 and 2 are the index, the values and x, and whose folded dimensions are those
// of the positions.

#include "index.cuh"

__device__ __forceinline__ i64 least(i64 a, i64 b) { return a < b ? a : b; }

template <typename I>
struct Places {
    const I* index;
    i64 length, stride, back, skipped;

    // What a position leads to, or -1 if nothing is written there.
    __device__ __forceinline__ i64 place(I position) const {
        i64 p = inside(position, length, back);
        return p == skipped ? -1 : p;
    }
    // Where in x position number k leads to, without the offset of the row, or -1.
    __device__ __forceinline__ i64 target(const Layout& l, i64 k) const {
        i64 where[3];
        locate(l.folded, k, where);
        i64 p = place(index[where[0]]);
        return p < 0 ? -1 : where[2] + p * stride;
    }
};

// The parameters of a kernel that make up its Places.
#define PLACES(I) const I *index, i64 length, i64 stride, i64 back, i64 skipped

// Each thread has two of the digits. A warp takes 128 positions at once, a block a page of 1024.
constexpr int BITS = 9, DIGITS = 1 << BITS;

// Which threads of the warp have the same digit.
__device__ __forceinline__ u32 alike(bool some, u32 digit) {
    u32 found = __ballot_sync(0xffffffffu, some);
#pragma unroll
    for (int bit = 0; bit < BITS; ++bit) {
        u32 set = __ballot_sync(0xffffffffu, digit >> bit & 1);
        found &= digit >> bit & 1 ? set : ~set;
    }
    return found;
}

// A thread's four positions of a page: their numbers, their digits, and which threads have the same ones.
struct Hand {
    u32 k[4], digit[4], same[4];

    // Positions first, first + 32.. in the order so far; without an order their numbers are the same. Skipped ones come last.
    template <typename I>
    __device__ __forceinline__ Hand(const Places<I>& places, const Layout& l, const u32* order, i64 first, i64 end, int shift) {
        i64 where[4];
        I found[4];
        // The reads of all four are in flight together.
#pragma unroll
        for (int j = 0; j < 4; ++j) k[j] = first + j * 32 >= end ? 0 : order ? order[first + j * 32] : (u32)(first + j * 32);
#pragma unroll
        for (int j = 0; j < 4; ++j) where[j] = at(l.folded, k[j]);
#pragma unroll
        for (int j = 0; j < 4; ++j) found[j] = places.index[where[j]];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            i64 p = places.place(found[j]);
            digit[j] = (u32)((u64)(p < 0 ? places.length : p) >> shift) & (DIGITS - 1);
            same[j] = alike(first + j * 32 < end, digit[j]);
        }
    }
    // The first of the threads that have the same digit.
    __device__ __forceinline__ bool leads(int j) const {
        int lane = threadIdx.x & 31;
        return same[j] >> lane & 1 && !(same[j] & ((1u << lane) - 1));
    }
    // Adds them to the warp's counts.
    __device__ __forceinline__ void count(u32* counts) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (leads(j)) counts[digit[j]] += __popc(same[j]);
            __syncwarp();
        }
    }
};
#define EACH_PAGE(first) \
    for (i64 first = blockIdx.x * share + (threadIdx.x >> 5) * 128 + (threadIdx.x & 31), page = blockIdx.x * share; page < end; \
         first += 1024, page += 1024)

__device__ __forceinline__ void no_counts(u32* counts) {
    for (int d = threadIdx.x & 31; d < DIGITS; d += 32) counts[d] = 0;
    __syncwarp();
}

typedef Pack<u32, 2> Two;

// table[block, digit] is how many positions of the block's `share` have the digit.
template <typename I>
__global__ void tally(const u32* order, u32* table, const __grid_constant__ Layout l, PLACES(I), i64 share, int shift) {
    Places<I> places = {index, length, stride, back, skipped};
    alignas(8) __shared__ u32 counts[8][DIGITS];
    u32* own = counts[threadIdx.x >> 5];
    no_counts(own);
    i64 end = least((blockIdx.x + 1) * share, l.width);
    EACH_PAGE(first) Hand(places, l, order, first, end, shift).count(own);
    __syncthreads();
    Two total = {};
    for (int w = 0; w < 8; ++w) {
        Two some = ((const Two*)counts[w])[threadIdx.x];
        total.of[0] += some.of[0];
        total.of[1] += some.of[1];
    }
    ((Two*)table)[blockIdx.x * 256 + threadIdx.x] = total;
}

// Deals the positions out by digit, in their present order where digits are equal.
template <typename I>
__global__ void deal(const u32* order, u32* out, const u32* table, const __grid_constant__ Layout l, PLACES(I), i64 share,
                     int shift) {
    Places<I> places = {index, length, stride, back, skipped};
    alignas(8) __shared__ u32 counts[8][DIGITS];
    __shared__ u32 ends[8];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    // Thread t finds where the block's first positions with digits 2 t and 2 t + 1 go: behind those of smaller digits, and of
    // blocks before.
    Two all = {}, before = {};
    for (u32 first = 0; first < gridDim.x; first += 16) {
        Two some[16];
#pragma unroll
        for (u32 b = 0; b < 16; ++b) some[b] = first + b < gridDim.x ? ((const Two*)table)[(first + b) * 256 + t] : Two{};
#pragma unroll
        for (u32 b = 0; b < 16; ++b)
#pragma unroll
            for (int d = 0; d < 2; ++d) {
                all.of[d] += some[b].of[d];
                before.of[d] += first + b < blockIdx.x ? some[b].of[d] : 0;
            }
    }
    u32 both = all.of[0] + all.of[1], sum = both;
    for (int step = 1; step < 32; step *= 2) {
        u32 lower = __shfl_sync(0xffffffffu, sum, lane < step ? lane : lane - step);
        if (lane >= step) sum += lower;
    }
    if (lane == 31) ends[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += ends[w];
    u32 free[2] = {sum - both + before.of[0], sum - all.of[1] + before.of[1]};

    i64 end = least((blockIdx.x + 1) * share, l.width);
    u32* own = counts[warp];
    EACH_PAGE(first) {
        no_counts(own);
        Hand hand(places, l, order, first, end, shift);
        hand.count(own);
        __syncthreads();
        // Counts become the places of a warp's first position with each digit.
        for (int w = 0; w < 8; ++w) {
            Two& some = ((Two*)counts[w])[t];
#pragma unroll
            for (int d = 0; d < 2; ++d) {
                u32 count = some.of[d];
                some.of[d] = free[d];
                free[d] += count;
            }
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (hand.same[j] >> lane & 1) out[own[hand.digit[j]] + __popc(hand.same[j] & ((1u << lane) - 1))] = hand.k[j];
            __syncwarp();
            if (hand.leads(j)) own[hand.digit[j]] += __popc(hand.same[j]);
            __syncwarp();
        }
    }
}
