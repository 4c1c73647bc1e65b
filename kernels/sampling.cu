// Draws of gamma, Poisson and binomial distributions by rejection, a thread for each element; all in double precision, as on the CPU.
//
// Traffic in bytes, n elements of s: each draw reads and writes n s; the slope reads 2 n s and writes n s.
// Marsaglia and Tsang, A Simple Method for Generating Gamma Variables, 2000; Hoermann, The Transformed Rejection Method for
// Generating Poisson Random Variables, and The Generation of Binomial Random Variates, 1993; Figurnov et al., Implicit Reparameterization Gradients, arXiv:1805.08498.

#include "common.cuh"
#include "philox.cuh"
#include "gamma.cuh"

template <typename T>
__global__ void standard_gamma(const T* x, const u64* state, T* out, i64 n, double least) {
    EACH(i, n) {
        double a = (double)(WIDE(T))x[i], found = 0;
        if (!(a > 0 && a < infinity<double>())) found = a == 0 ? least : a > 0 ? a : not_a_number<double>();
        double d = (a < 1 ? a + 1 : a) - 1.0 / 3, u[4];
        for (u64 attempt = 0; found == 0; ++attempt) {
            draw(state, i, u, attempt);
            double normal = sqrt(-2 * log(1 - u[0])) * cos(u[1] * 6.283185307179586), v = 1 + normal / sqrt(9 * d);
            v = v * v * v;
            if (!(v > 0 && log(1 - u[2]) < 0.5 * normal * normal + d - d * v + d * log(v))) continue;
            found = d * v * (a < 1 ? pow(1 - u[3], 1 / a) : 1.0);
            found = found > least ? found : least;
        }
        out[i] = (T)(WIDE(T))found;
    }
}

template <typename T>
__global__ void standard_gamma_slope(const T* concentration, const T* drawn, T* out, i64 n) {
    EACH(i, n) {
        double a = (double)(WIDE(T))concentration[i], x = (double)(WIDE(T))drawn[i];
        double found = a > 0 && x >= 0 ? 0 : not_a_number<double>(), slope;
        if (a > 1e4 && x > 0) {
            double root = sqrt(a), w = (x - a) / root, z = w - (w * w - 1) / (3 * root) + (7 * w * w * w - w) / (36 * root * root);
            found = 1 + z / (2 * root) - (z * z * z - 7 * z) / (72 * root * root * root);
        } else if (a > 0 && x > 0 && x < infinity<double>()) {
            double total = incomplete_series(a, x, slope);
            found = x / a * ((digamma_of(a + 1) - log(x)) * total + slope);
        }
        out[i] = (T)(WIDE(T))found;
    }
}

// One attempt of transformed rejection about `center`: accepted at once (1), never (-1), or if v is at most the probability (0).
__device__ __forceinline__ int transformed(const double (&u)[4], double center, double b, double a, double quick, double& count,
                                           double& v) {
    double away = u[0] - 0.5, inside = 0.5 - fabs(away);
    v = 1 - u[1];
    count = floor((2 * a / inside + b) * away + center);
    if (inside >= 0.07 && v <= quick) return 1;
    if (!(count >= 0 && (inside >= 0.013 || v <= inside))) return -1;
    v /= a / (inside * inside) + b;
    return 0;
}

template <typename T>
__global__ void poisson(const T* x, const u64* state, T* out, i64 n) {
    EACH(i, n) {
        double rate = (double)(WIDE(T))x[i], count = 0, u[4], v;
        if (!(rate >= 0 && rate < infinity<double>())) count = rate > 0 ? rate : not_a_number<double>();
        else if (rate < 10) {
            draw(state, i, u);
            double p = exp(-rate), total = p;
            for (int k = 1; k < 1000 && u[0] > total && p > 0; ++k) {
                p *= rate / k;
                count += 1;
                total += p;
            }
        } else {
            double b = 0.931 + 2.53 * sqrt(rate);
            for (u64 attempt = 0;; ++attempt) {
                draw(state, i, u, attempt);
                int found = transformed(u, rate + 0.43, b, -0.059 + 0.02483 * b, 0.9277 - 3.6224 / (b - 2), count, v);
                if (found > 0) break;
                if (found < 0) continue;
                if (log(v * (1.1239 + 1.1328 / (b - 3.4))) <= count * log(rate) - rate - lgamma(count + 1)) break;
            }
        }
        out[i] = (T)(WIDE(T))count;
    }
}

template <typename T>
__global__ void binomial(const T* counts, const T* chances, const u64* state, T* out, i64 size) {
    EACH(i, size) {
        double n = floor((double)(WIDE(T))counts[i]), chance = (double)(WIDE(T))chances[i], count = 0, u[4], v;
        if (!(n >= 0 && n < infinity<double>() && chance >= 0 && chance <= 1)) {
            out[i] = (T)not_a_number<WIDE(T)>();
            continue;
        }
        double p = chance > 0.5 ? 1 - chance : chance, ratio = p / (1 - p);
        if (n * p < 10) {
            draw(state, i, u);
            double part = exp(n * log1p(-p)), total = part;
            for (int k = 1; k < 1000 && u[0] > total && part > 0; ++k) {
                part *= (n - k + 1) / k * ratio;
                count += 1;
                total += part;
            }
        } else {
            double spread = sqrt(n * p * (1 - p)), b = 1.15 + 2.53 * spread, mode = floor((n + 1) * p);
            double most = lgamma(mode + 1) + lgamma(n - mode + 1);
            for (u64 attempt = 0;; ++attempt) {
                draw(state, i, u, attempt);
                int found = transformed(u, n * p + 0.5, b, -0.0873 + 0.0248 * b + 0.01 * p, 0.92 - 4.2 / b, count, v);
                if (found > 0) break;
                if (found < 0 || count > n) continue;
                if (log(v * (2.83 + 5.1 / b) * spread)
                    <= most - lgamma(count + 1) - lgamma(n - count + 1) + (count - mode) * log(ratio)) break;
            }
        }
        out[i] = (T)(WIDE(T))(chance > 0.5 ? n - count : count);
    }
}
