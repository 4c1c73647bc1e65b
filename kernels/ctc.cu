// Connectionist temporal classification (Graves et al., ICML 2006): a block for each sample, step by step.
//
// A sample's columns are its labels, with a blank before, between and after them; the samples' columns stand side by side in each
// row of alpha. Traffic in bytes, T steps of N samples with L labels of s: forward reads and writes (2 L + 1) T N s for alpha, and
// reads as many log-probabilities; backward reads alpha and these as often, three rows of a workspace that stay in cache, and
// reads and writes T N C s. Lengths that do not fit, and labels that are no classes, give NaN: the host could not check them
// without waiting.

#include "common.cuh"

// log(exp(a) + exp(b)), as NumPy computes it.
template <typename A> __device__ __forceinline__ A add_logs(A a, A b) {
    if (a == b) return a + (A)0.69314718055994530942;
    A apart = a - b;
    return apart > 0 ? a + log1p(exp(-apart)) : apart <= 0 ? b + log1p(exp(apart)) : apart;
}

// What a block works on: `padded` labels a sample, or with -1 `total` labels in a row.
template <typename T>
struct Sample {
    const i64* labels;
    i64 first, count, width, steps, all, samples;
    int classes, blank;
    bool fits;
    __device__ __forceinline__ Sample(const i64* targets, const i64* input_lengths, const i64* target_lengths, i64 all,
                                      i64 samples, int classes, i64 padded, i64 total, int blank)
        : all(all), samples(samples), classes(classes), blank(blank) {
        i64 b = blockIdx.x, start = 0;
        count = target_lengths[b];
        steps = input_lengths[b];
        if (padded < 0) {
            for (i64 k = 0; k < b; ++k) start += target_lengths[k];
        } else {
            start = b * padded;
            total = start + padded;
        }
        fits = count >= 0 && steps >= 0 && steps <= all && start >= 0 && start + count <= total;
        labels = targets + start;
        first = b + 2 * start;
        width = 2 * (padded < 0 ? count : padded) + 1;
    }
    __device__ __forceinline__ i64 end() const { return 2 * count + 1; }
    __device__ __forceinline__ i64 label(i64 s) const { return s & 1 ? labels[s >> 1] : (i64)blank; }
    // Does a step lead from column s - 2 to s?
    __device__ __forceinline__ bool skips(i64 s) const { return s > 1 && label(s) != label(s - 2); }
    __device__ __forceinline__ T at(const T* log_probs, i64 t, i64 c) const {
        return c < 0 || c >= classes ? not_a_number<T>() : log_probs[(t * samples + blockIdx.x) * classes + c];
    }
};

template <typename T>
__global__ void ctc_loss(const T* log_probs, const i64* targets, const i64* input_lengths, const i64* target_lengths, T* out,
                         T* alpha, i64 steps, i64 samples, int classes, i64 padded, i64 total, i64 columns, int blank) {
    Sample<T> own(targets, input_lengths, target_lengths, steps, samples, classes, padded, total, blank);
    if (!own.fits) {
        if (!threadIdx.x) out[blockIdx.x] = not_a_number<T>();
        return;
    }
    const T none = lowest<T>();
    T* rows = alpha + own.first;
    for (i64 t = 0; t < steps; ++t) {
        T* row = rows + t * columns;
        const T* before = row - columns;
        for (i64 s = threadIdx.x; s < own.width; s += 256) {
            if (s >= own.end() || t >= own.steps || (!t && s > 1)) {
                row[s] = none;
                continue;
            }
            T found = (T)0;
            if (t) {
                found = add_logs(before[s], s ? before[s - 1] : none);
                found = add_logs(found, own.skips(s) ? before[s - 2] : none);
            }
            row[s] = found + own.at(log_probs, t, own.label(s));
        }
        __syncthreads();
    }
    if (threadIdx.x) return;
    if (!own.steps) {
        out[blockIdx.x] = own.count ? infinity<T>() : (T)0;
        return;
    }
    const T* row = rows + (own.steps - 1) * columns + own.end();
    out[blockIdx.x] = -(own.count ? add_logs(row[-1], row[-2]) : row[-1]);
}

// `later` and `now` take turns as the row of beta, the logarithms of the probabilities of all endings after a step. `links` says
// for each column whether it is the first of its class, and the next one of it, 0 if there is none: each class is added up by one
// thread, in a fixed order, but for the blanks, half of the columns, which the block adds up.
template <typename T>
__global__ void ctc_loss_grad(const T* dy, const T* log_probs, const i64* targets, const i64* input_lengths,
                              const i64* target_lengths, const T* loss, const T* alpha, T* out, i64* links, T* later, T* now,
                              T* shares, i64 steps, i64 samples, int classes, i64 padded, i64 total, i64 columns, int blank,
                              int zero_infinity) {
    __shared__ T room[8];
    Sample<T> own(targets, input_lengths, target_lengths, steps, samples, classes, padded, total, blank);
    const T none = lowest<T>(), nll = loss[blockIdx.x], slope = dy[blockIdx.x];
    bool finite = own.fits && nll - nll == 0;
    i64 end = own.end(), reached = own.fits ? own.steps : steps;
    for (i64 t = finite ? reached : 0; t < steps; ++t)
        for (i64 c = threadIdx.x; c < classes; c += 256)
            out[(t * samples + blockIdx.x) * classes + c] =
                t >= reached || (zero_infinity && nll == infinity<T>()) ? (T)0 : not_a_number<T>();
    if (!finite) return;
    links += own.first;
    later += own.first;
    now += own.first;
    shares += own.first;
    for (i64 s = threadIdx.x; s < end; s += 256) {
        i64 c = own.label(s), next = 0;
        bool head = c != blank;
        for (i64 k = 1; k < s && head; k += 2) head = own.label(k) != c;
        for (i64 k = s + 2; c != blank && k < end && !next; k += 2) next = own.label(k) == c ? k : 0;
        links[s] = next * 2 + head;
    }
    for (i64 t = reached - 1; t >= 0; --t) {
        T blanks = 0;
        const T* row = alpha + t * columns + own.first;
        T* made = out + (t * samples + blockIdx.x) * classes;
        for (i64 s = threadIdx.x; s < end; s += 256) {
            T found = s >= end - 2 ? (T)0 : none;
            if (t < reached - 1) {
                found = later[s] + own.at(log_probs, t + 1, own.label(s));
                found = add_logs(found, s + 1 < end ? later[s + 1] + own.at(log_probs, t + 1, own.label(s + 1)) : none);
                found = add_logs(found, s + 2 < end && own.skips(s + 2) ? later[s + 2] + own.at(log_probs, t + 1, own.label(s + 2))
                                                                        : none);
            }
            now[s] = found;
            T share = exp(row[s] + found + nll) * slope;
            shares[s] = share;
            if (own.label(s) == blank) blanks += share;
        }
        blanks = team_fold<Sum>(blanks, Team(256), room);
        for (int c = threadIdx.x; c < classes; c += 256) made[c] = exp(own.at(log_probs, t, c)) * slope - (c == blank ? blanks : (T)0);
        __syncthreads();
        for (i64 s = threadIdx.x; s < end; s += 256) {
            if (!(links[s] & 1)) continue;
            T whole = 0;
            for (i64 k = s; k; k = links[k] >> 1) whole += shares[k];
            made[own.label(s)] -= whole;
        }
        __syncthreads();
        T* row_before = later;
        later = now;
        now = row_before;
    }
}
