// The maximum of a row and the sum of its exponentials, in one pass.
//
// Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867.

// exp(x) of what is summed, where x <= 0. The hardware computes powers of 2: a rounding error grows with -x, and its effect on the
// sum shrinks with exp(x).
template <typename A> __device__ __forceinline__ A power_of_e(A x) { return exp2(x * (A)1.4426950408889634); }

// The maximum of some numbers, and the sum of exp(number - maximum).
template <typename A> struct Peak {
    A top = -infinity<A>(), total = 0;

    // The denominator of a softmax: NaN beside an infinite logit, since no share is defined then.
    __device__ __forceinline__ A whole() const { return top == infinity<A>() ? not_a_number<A>() : total; }

    __device__ __forceinline__ void take(A x) {
        if (x > top) {
            total = total * power_of_e(top - x) + 1;
            top = x;
        } else {
            // For equal numbers the difference is 0, although inf - inf is not.
            total += x == top ? (A)1 : power_of_e(x - top);
        }
    }

    // Four at once: their loads do not wait for each other, and one exponential rescales the previous sum.
    __device__ __forceinline__ void take(const A (&x)[4]) {
        A most = top;
#pragma unroll
        for (int k = 0; k < 4; ++k) most = x[k] > most ? x[k] : most;
        if (most > top) {
            total *= power_of_e(top - most);
            top = most;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) total += x[k] == top ? (A)1 : power_of_e(x[k] - top);
    }

    __device__ __forceinline__ void take(A other, A sum) {
        if (other > top) {
            total = total * power_of_e(top - other) + sum;
            top = other;
        } else {
            total += other == top ? sum : sum * power_of_e(other - top);
        }
    }
};

template <typename A>
__device__ __forceinline__ Peak<A> team_peak(Peak<A> peak, const Team& team, A* room) {
    for (int offset = team.farthest(); offset; offset >>= 1) {
        A top = __shfl_xor_sync(0xffffffffu, peak.top, offset), total = __shfl_xor_sync(0xffffffffu, peak.total, offset);
        peak.take(top, total);
    }
    if (team.lanes <= 32) return peak;
    __syncthreads();
    if (!(threadIdx.x & 31)) room[threadIdx.x >> 5] = peak.top, room[8 + (threadIdx.x >> 5)] = peak.total;
    __syncthreads();
    peak.top = room[0], peak.total = room[8];
    for (int k = 1; k < 8; ++k) peak.take(room[k], room[8 + k]);
    return peak;
}

// For a row whose elements are `step` apart.
template <typename A, typename T>
__device__ __forceinline__ Peak<A> peak_of(const T* x, i64 width, i64 step, const Team& team, A* room) {
    Peak<A> peak;
    i64 i = team.rank;
    for (; i + 3 * team.lanes < width; i += 4 * team.lanes) {
        A four[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) four[k] = (A)x[(i + k * team.lanes) * step];
        peak.take(four);
    }
    for (; i < width; i += team.lanes) peak.take((A)x[i * step]);
    return team_peak(peak, team, room);
}
