// The maximum of a row and the sum of its exponentials, in one pass.
//
// Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867.

#include "rows.cuh"

// exp(x) of what is summed, where x <= 0. The hardware computes powers of 2: a rounding error grows with -x, and its effect on the
// sum shrinks with exp(x). Less than the smallest normal number may become 0.
template <typename A> __device__ __forceinline__ A power_of_e(A x) { return exp2(x * (A)1.4426950408889634); }
#ifdef __CUDACC_RTC__
template <> __device__ __forceinline__ float power_of_e(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}
#endif

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

    // A part of a row at once: one exponential rescales the previous sum. An infinite maximum is not subtracted: each element
    // counts as 0 beside -inf, which leaves a logarithm of -inf, and inf counts as inf.
    template <typename T, int N>
    __device__ __forceinline__ void take(const Part<T, N>& part, i64 left, const Team& team) {
        A most = top;
        part.each(left, team, [&](int k, int) {
#pragma unroll
            for (int j = 0; j < N; ++j) most = fmax(most, part.v[k + j]);
        });
        if (most > top) {
            total *= power_of_e(top - most);
            top = most;
        }
        A level = fabs(top) == infinity<A>() ? (A)0 : top;
        part.each(left, team, [&](int k, int) {
#pragma unroll
            for (int j = 0; j < N; ++j) total += power_of_e(part.v[k + j] - level);
        });
    }

    // What another thread has. Both threads of an exchange compute the same operations, so that they get the same bits.
    __device__ __forceinline__ void take(A other, A sum) {
        bool up = other > top;
        A low = up ? total : sum, high = up ? sum : total;
        total = other == top ? total + sum : fma(low, power_of_e(-fabs(top - other)), high);
        top = up ? other : top;
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

// For a row whose elements are `step` apart. `part` holds the last part of it afterwards.
template <typename A, typename T, int N>
__device__ __forceinline__ Peak<A> peak_of(const T* x, i64 width, i64 step, const Team& team, A* room, Part<T, N>& part) {
    Peak<A> peak;
    for (i64 from = 0; from < width; from += part.span(team)) {
        part.load(x + from * step, step, width - from, team, -infinity<A>());
        peak.take(part, width - from, team);
    }
    return team_peak(peak, team, room);
}

// The largest number; NaN, which makes the sum NaN, is passed over.
struct Highest {
    template <typename A> static __device__ __forceinline__ A of(A a, A b) { return fmax(a, b); }
};

// For a row that a team holds in registers: `part` is given x, and becomes exp(x - maximum).
template <typename A, typename T, int N>
__device__ __forceinline__ Peak<A> peak_of_held(Part<T, N>& part, i64 width, const Team& team, A* room) {
    Peak<A> peak;
    part.each(width, team, [&](int k, int) {
#pragma unroll
        for (int j = 0; j < N; ++j) peak.top = fmax(peak.top, part.v[k + j]);
    });
    peak.top = team_fold<Highest>(peak.top, team, room);
    A level = fabs(peak.top) == infinity<A>() ? (A)0 : peak.top;
    part.each(width, team, [&](int k, int) {
#pragma unroll
        for (int j = 0; j < N; ++j) peak.total += part.v[k + j] = exp(part.v[k + j] - level);
    });
    peak.total = team_fold<Sum>(peak.total, team, room);
    return peak;
}
