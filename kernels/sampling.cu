// Draws of gamma and Poisson distributions by rejection, a thread for each element; all in double precision, as on the CPU.
//
// Traffic in bytes, n elements of s: each draw reads and writes n s; the slope reads 2 n s and writes n s.
// Marsaglia and Tsang, A Simple Method for Generating Gamma Variables, 2000; Hoermann, The Transformed Rejection Method for
// Generating Poisson Random Variables, 1993; Figurnov et al., Implicit Reparameterization Gradients, arXiv:1805.08498.

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

template <typename T>
__global__ void poisson(const T* x, const u64* state, T* out, i64 n) {
    EACH(i, n) {
        double rate = (double)(WIDE(T))x[i], count = 0, u[4];
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
            double b = 0.931 + 2.53 * sqrt(rate), a = -0.059 + 0.02483 * b;
            for (u64 attempt = 0;; ++attempt) {
                draw(state, i, u, attempt);
                double away = u[0] - 0.5, v = 1 - u[1], inside = 0.5 - fabs(away);
                count = floor((2 * a / inside + b) * away + rate + 0.43);
                if (inside >= 0.07 && v <= 0.9277 - 3.6224 / (b - 2)) break;
                if (!(count >= 0 && (inside >= 0.013 || v <= inside))) continue;
                double likely = log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (inside * inside) + b));
                if (likely <= count * log(rate) - rate - lgamma(count + 1)) break;
            }
        }
        out[i] = (T)(WIDE(T))count;
    }
}
